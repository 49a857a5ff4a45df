"""Common parts of tests of remote tensors and programs."""

from __future__ import annotations

import numpy as np

import opdispatch_client as oc
from tests.service.running_daemon import wait_for

MATH = """\
import gc
import os
import threading
import time

from opdispatch import Library
from opdispatch_server.worker.values.store import ValueStore

max_concurrency = 2

lib = Library("math", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.define("same(Tensor x) -> Tensor")
lib.define("iadd_(Tensor(a!) x, Tensor y) -> Tensor(a!)")
lib.define("fill_(Tensor(a!)[] xs, float value) -> ()")
lib.define("two(Tensor x) -> (Tensor, int)")
lib.define("rows(Tensor x) -> Tensor[]")
lib.define("total(Tensor[] xs) -> Tensor")
lib.define("boom(Tensor x) -> Tensor")
lib.define("die(Tensor x) -> Tensor")
lib.define("address(Tensor x) -> int")
lib.define("writable(Tensor x) -> bool")
lib.define("busiest(Tensor x) -> (Tensor, int)")
lib.define("hold(Tensor x, str folder) -> Tensor")
lib.define("stored(Tensor x) -> int")
lib.define("remote(Tensor x, *, bool remote) -> bool")
lock = threading.Lock()
running = highest = 0


def iadd_(x, y):
    x += y
    return x


def fill_(xs, value):
    for x in xs:
        x[...] = value


def stored(x):
    stores = [each for each in gc.get_objects() if isinstance(each, ValueStore)]
    return sum(store.count() for store in stores)


def boom(x):
    raise ValueError(f"no picture: {x.shape}")


def die(x):
    os._exit(3)


def busiest(x):
    global running, highest
    with lock:
        running += 1
        highest = max(highest, running)
    time.sleep(0.001)
    with lock:
        running -= 1
    return x + 0, highest


def hold(x, folder):
    open(os.path.join(folder, "entered"), "w").close()
    while not os.path.exists(os.path.join(folder, "open")):
        time.sleep(0.005)
    return x + 1


lib.impl("add", lambda x, y: x + y, "CPU")
lib.impl("same", lambda x: x, "CPU")
lib.impl("iadd_", iadd_, "CPU")
lib.impl("fill_", fill_, "CPU")
lib.impl("two", lambda x: (x * 2, x.size), "CPU")
lib.impl("rows", lambda x: list(x), "CPU")
lib.impl("total", lambda xs: sum(xs), "CPU")
lib.impl("boom", boom, "CPU")
lib.impl("die", die, "CPU")
lib.impl("address", lambda x: x.ctypes.data, "CPU")
lib.impl("writable", lambda x: x.flags.writeable, "CPU")
lib.impl("busiest", busiest, "CPU")
lib.impl("hold", hold, "CPU")
lib.impl("stored", stored, "CPU")
lib.impl("remote", lambda x, *, remote: remote, "CPU")
"""

# Another library, whose operators call those of the first one.
MORE = """\
from opdispatch import Library, ops

lib = Library("more", "DEF")
lib.define("mul(Tensor x, Tensor y) -> Tensor")
lib.define("twice(Tensor x) -> Tensor")
lib.impl("mul", lambda x, y: x * y, "CPU")
lib.impl("twice", lambda x: ops.math.add(x, x), "CPU")
"""


def kept(session: oc.Session) -> dict[str, tuple[int, int]]:
    """How many values each interpreter keeps, and their bytes; those that keep none left out."""
    return {
        each.name: (each.remote_values, each.remote_bytes)
        for each in session.interpreters()
        if each.remote_values
    }


def stores(session: oc.Session, interpreter: str, count: int) -> bool:
    """Whether an interpreter that holds MATH soon has so many values, by either count."""
    with session.put(np.zeros(1), on=interpreter) as x:
        return wait_for(lambda: session.call("math::stored", x) == count + 1)


def nothing_is_kept(session: oc.Session, seconds: float = 10.0) -> bool:
    """Whether every value is let go of in time."""
    return wait_for(lambda: not kept(session), seconds) and session.check_invariants() == []
