"""Libraries that do all that a kernel can do to its process, and libraries that do no harm."""

from __future__ import annotations

from collections.abc import Mapping

GOOD = """\
import time

import numpy as np

from opdispatch import Library

lib = Library({name!r}, "DEF")
lib.define("scale(Tensor x) -> Tensor")
lib.define("count(Tensor x) -> int[]")
lib.define("wait(Tensor x, float seconds) -> Tensor")


def scale(x):
    return np.multiply(x, {factor}) + np.empty(x.shape) * 0


def wait(x, seconds):
    time.sleep(seconds)
    with open(__file__):
        return x * {factor}


lib.impl("scale", scale, "CPU")
lib.impl("count", lambda x: [{factor}] * len(x), "CPU")
lib.impl("wait", wait, "CPU")
"""

_FRAME = """\
import ctypes, os, re, resource, signal, socket, time

import numpy as np

from opdispatch import Library

lib = Library({name!r}, "DEF")
lib.define("fine(Tensor x) -> Tensor")
lib.define("harm(Tensor x, str how) -> int")
kept = []


def crash():
    ctypes.string_at(0)


def leave():
    os._exit(3)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    while True:
        time.sleep(3600)


def spin():
    re.match(r"(a+)+$", "a" * 40 + "b")


def spin_briefly():
    re.match(r"(a+)+$", "a" * 22 + "b")


def fill_memory():
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, limit))
    while True:
        kept.append(bytearray(1 << 20))


def fill_descriptors():
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limit))
    while True:
        kept.append(socket.socket())


def poison():
    np.empty = None
    np.frombuffer = None
    np.asarray = None


def poison_kernels():
    import builtins

    builtins.len = None


def answer_at_length():
    kept.append(None)
    return [1] * 20_000_000


WAYS = {{each.__name__: each for each in (
    crash, leave, kill, hang, spin, spin_briefly, fill_memory, fill_descriptors, poison,
    answer_at_length,
)}}


def harm(x, how):
    return WAYS[how]() or 0


lib.impl("fine", lambda x: x + 1, "CPU")
lib.impl("harm", harm, "CPU")
"""

WAYS: Mapping[str, tuple[str, ...]] = {
    "crashes": ("crash", "leave"),
    "is_killed": ("kill", "crash"),
    "hangs": ("hang", "spin", "spin_briefly"),
    "exhausts": ("fill_memory", "fill_descriptors"),
    "poisons": ("poison", "answer_at_length"),
}
"""Of each bad library, the ways in which its ``harm`` does harm."""


def good_library(name: str, factor: int) -> str:
    """Return the text of a library whose operators multiply by ``factor``."""
    return GOOD.format(name=name, factor=factor)


def bad_library(name: str) -> str:
    """Return the text of a library with an operator that does harm, and one that does none."""
    return _FRAME.format(name=name)
