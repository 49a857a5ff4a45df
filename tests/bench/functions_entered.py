"""How many Python functions one direct call enters, in the client and in the interpreter.

Unlike a time, the figure does not move with what else the machine does. A kernel switches the count
on in the thread that runs it, so that it counts from one run of the kernel to the next: the rest of
one call, and the beginning of the next one.
"""

from __future__ import annotations

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
from tests.bench.remote import running

LIBRARY = """\
import json
import sys
import threading
from collections import Counter

from opdispatch import Library

lib = Library("counted", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.define("entered() -> str")
here = threading.local()
calls = []


def note(frame, event, _):
    if event == "call":
        code = frame.f_code
        here.names[f"{code.co_filename}:{code.co_qualname}"] += 1


def add(x, y):
    sys.setprofile(None)
    if hasattr(here, "names"):
        calls.append(here.names)
    here.names = Counter()
    total = x + y
    sys.setprofile(note)
    return total


lib.impl("add", add, "CPU")
lib.impl("entered", lambda: json.dumps(calls), "CompositeExplicitAutograd")
"""
WARM_UP = 300
CALLS = 101


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


def measure(session: oc.Session, folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return what a direct call of two arrays of 16 bytes enters: client, interpreter."""
    library = folder / "counted.py"
    library.write_text(LIBRARY)
    session.load(library)
    x = np.ones(4, np.float32)

    def call() -> object:
        return session.call("counted::add", x, x)

    for _ in range(WARM_UP):
        call()
    client = usual(count_client(call))
    calls = json.loads(session.call("counted::entered"))
    return client, usual([Counter(each) for each in calls[-CALLS:]])


def main() -> None:
    """Print both, by name."""
    command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--workers", "1")
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name:
        folder = Path(name)
        address = f"unix://{folder}/d.sock"
        options = ("--listen", address, "--state", f"{folder}/s", "--log-level", "error")
        with running(*command, *options), oc.connect(address) as session:
            sides = measure(session, folder)
    for side, entered in zip(("client", "interpreter"), sides, strict=True):
        table = Table("times", f"entered in the {side}: {entered.total()}")
        for where, times in entered.most_common():
            table.add_row(str(times), "/".join(where.split("/")[-2:]))
        Console(width=120).print(table)


if __name__ == "__main__":
    main()
