"""How many Python functions a direct call enters, in the client and in the interpreter, by kind.

Unlike a time, the figure does not move with what else the machine does. A kernel switches the count
on in the thread that runs it, so that it counts from one run of a kernel to the next: the rest of
one call, and the beginning of the next one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from opdispatch import Tensor
from tests.bench.remote import running

LIBRARY = """\
import json
import sys
import threading
from collections import Counter

from opdispatch import Library

lib = Library("counted", "DEF")
here = threading.local()
calls = []


def note(frame, event, _):
    if event == "call":
        code = frame.f_code
        here.names[f"{code.co_filename}:{code.co_qualname}"] += 1


def define(schema, kernel, key="CPU"):
    def run(*args, **kwargs):
        sys.setprofile(None)
        if hasattr(here, "names"):
            calls.append(here.names)
        here.names = Counter()
        result = kernel(*args, **kwargs)
        sys.setprofile(note)
        return result

    lib.define(schema)
    lib.impl(schema.partition("(")[0], run, key)


define("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
define("scale(Tensor x, float by, *, int? plus=None) -> Tensor", lambda x, by, *, plus: x * by)
define("joined(Tensor[] parts, str how) -> Tensor", lambda parts, how: parts[0] + parts[1])
define("cast(Tensor x, ScalarType dtype) -> Tensor", lambda x, dtype: x.astype(dtype))
define("moments(Tensor x) -> (Tensor mean, int n)", lambda x: (x.mean(), x.size))
define("split(Tensor x) -> Tensor[]", lambda x: [x[:2], x[2:]])
define("none(Tensor x) -> ()", lambda x: None)
define("twice(int n) -> int", lambda n: 2 * n, "CompositeExplicitAutograd")
define("sum(int[] n) -> int", lambda n: sum(n), "CompositeExplicitAutograd")
define("text(str s) -> str", lambda s: s + s, "CompositeExplicitAutograd")
lib.define("entered() -> str")
lib.impl("entered", lambda: json.dumps(calls), "CompositeExplicitAutograd")
"""
X = np.ones(4, np.float32)
LARGE = np.ones(1 << 18, np.float32)
T = Tensor(X)
# Stands for a remote tensor with these elements.
REMOTE = object()
KINDS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "two arrays": ("add", (X, X), {}),
    "two arrays of 1 MB": ("add", (LARGE, LARGE + 1), {}),
    "array by name": ("add", (X,), {"y": X}),
    "bool arrays": ("add", (X > 0, X > 0), {}),
    "big-endian arrays": ("add", (X.astype(">f4"), X.astype(">f4")), {}),
    "NumPy scalar": ("add", (X, np.float32(2)), {}),
    "Tensors": ("add", (T, T), {}),
    "remote tensors": ("add", (REMOTE, REMOTE), {}),
    "remote tensors, result kept": ("add", (REMOTE, REMOTE), {"remote": True}),
    "array, float": ("scale", (X, 2.0), {}),
    "array, float, int by name": ("scale", (X, 2.0), {"plus": 3}),
    "array, int for a float": ("scale", (X, 2), {}),
    "array, None by name": ("scale", (X, 2.0), {"plus": None}),
    "list of arrays, text": ("joined", ([X, X], "plus"), {}),
    "array, dtype": ("cast", (X, np.float64), {}),
    "results by name": ("moments", (X,), {}),
    "list of results": ("split", (X,), {}),
    "no result": ("none", (X,), {}),
    "int": ("twice", (3,), {}),
    "list of ints": ("sum", ([1, 2, 3],), {}),
    "text": ("text", ("a",), {}),
}
WARM_UP = 60
CALLS = 41


def count_client(call: Callable[[], object]) -> list[Counter[str]]:
    """Return what each of CALLS calls enters in this thread, by file and name."""
    counted: list[Counter[str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            counted[-1][f"{code.co_filename}:{code.co_qualname}"] += 1

    for _ in range(CALLS):
        counted.append(Counter())
        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
    return counted


def usual(counted: list[Counter[str]]) -> Counter[str]:
    """Return the call that enters the median number of functions."""
    return sorted(counted, key=Counter.total)[len(counted) // 2]


def load(session: oc.Session, folder: Path) -> None:
    """Load the library with the operators of KINDS."""
    library = folder / "counted.py"
    library.write_text(LIBRARY)
    session.load(library)


def measure(session: oc.Session, kind: str) -> tuple[Counter[str], Counter[str]]:
    """Return what a direct call of a kind enters: client, interpreter."""
    operator, given, kwargs = KINDS[kind]
    args = [session.put(X) if each is REMOTE else each for each in given]

    def call() -> object:
        return session.call(f"counted::{operator}", *args, **kwargs)

    for _ in range(WARM_UP):
        call()
    client = usual(count_client(call))
    calls = json.loads(session.call("counted::entered"))
    return client, usual([Counter(each) for each in calls[-CALLS:]])


async def measure_awaited(address: str, kind: str) -> Counter[str]:
    """Return what an awaited call enters in the client, its event loop's functions among them."""
    operator, given, kwargs = KINDS[kind]
    counted: list[Counter[str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            counted[-1][f"{code.co_filename}:{code.co_qualname}"] += 1

    async with oc.aio.connect(address) as session:
        args = tuple([await session.put(X) if each is REMOTE else each for each in given])
        for _ in range(WARM_UP):
            await session.call(f"counted::{operator}", *args, **kwargs)
        for _ in range(CALLS):
            counted.append(Counter())
            sys.setprofile(note)
            await session.call(f"counted::{operator}", *args, **kwargs)
            sys.setprofile(None)
    return usual(counted)


def main() -> None:
    """Print both of every kind, and by name those of the first one."""
    command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--workers", "1")
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name:
        folder = Path(name)
        address = f"unix://{folder}/d.sock"
        options = ("--listen", address, "--state", f"{folder}/s", "--log-level", "error")
        with running(*command, *options), oc.connect(address) as session:
            load(session, folder)
            found = {kind: measure(session, kind) for kind in KINDS}
            awaited = {kind: asyncio.run(measure_awaited(address, kind)) for kind in KINDS}
    console, first = Console(width=120), next(iter(found))
    for side, entered in zip(("client", "interpreter"), found[first], strict=True):
        table = Table("times", f"entered in the {side}, {first}: {entered.total()}")
        for where, times in entered.most_common():
            table.add_row(str(times), "/".join(where.split("/")[-2:]))
        console.print(table)
    table = Table("functions entered by a call", "client", "asyncio client", "interpreter")
    for kind, (client, interpreter) in found.items():
        sides = (client, awaited[kind], interpreter)
        table.add_row(kind, *(str(each.total()) for each in sides))
    console.print(table)


if __name__ == "__main__":
    main()
