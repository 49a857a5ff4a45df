"""How long the daemon's event loop stands still while a large registry changes: ``make bench``.

One client calls all the time; another loads a library of 50,000 operators, loads and unloads small
ones beside it, and unloads the large one.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.remote import running

OPERATORS = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
ROUNDS = 100
LARGE_ROUNDS = 2

LIBRARY = """\
from opdispatch import Library

lib = Library({name!r}, "DEF")


def kernel(x, y, *, alpha=1):
    return x


for number in range({operators}):
    lib.define(f"op{{number}}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
    lib.impl(f"op{{number}}", kernel, "CPU")
# version {version}
"""


class Phases:
    """Times of a run's phases, by the clock that the daemon's probe has, too."""

    def __init__(self) -> None:
        self.times: dict[str, list[tuple[float, float]]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note how long a block took."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.times.setdefault(name, []).append((began, time.monotonic()))


def call_all_the_time(address: str, ends: threading.Event) -> None:
    """Call one operator through the daemon until ``ends``."""
    x = np.ones(4, np.float32)
    with oc.connect(address, direct=False) as session:
        while not ends.is_set():
            session.call("calls::op0", x, x)


def change(address: str, folder: Path, phases: Phases) -> None:
    """Load and unload."""
    path = folder / "small.py"
    large = folder / "large.py"

    def write(path: Path, operators: int, version: int) -> None:
        path.write_text(LIBRARY.format(name=path.stem, operators=operators, version=version))

    def rounds(what: str) -> None:
        for version in range(ROUNDS):
            write(path, 10, version)
            with phases.phase(what):
                session.load(path)
                session.unload("small")

    with oc.connect(address, timeout=120) as session:
        with phases.phase("calls alone"):
            time.sleep(3)
        rounds("small libraries come and go")
        for version in range(LARGE_ROUNDS):
            write(large, OPERATORS, version)
            with phases.phase(f"{OPERATORS:,} operators are loaded"):
                session.load(large)
            with phases.phase("calls, beside them"):
                time.sleep(3)
            rounds("small libraries come and go, beside them")
            write(large, OPERATORS, version + 1_000)
            with phases.phase("a new version of them is loaded"):
                session.load(large)
            with phases.phase("they are unloaded"):
                session.unload("large")
            time.sleep(1)


def read_probe(path: Path) -> dict[str, list[tuple[float, float]]]:
    """When the loop woke, and when a collection ended, and how long that took."""
    found: dict[str, list[tuple[float, float]]] = {"loop": []}
    for line in path.read_text().splitlines():
        what, when, took = line.split()
        found.setdefault(what, []).append((float(when), float(took)))
    return found


def within(events: list[tuple[float, float]], spans: list[tuple[float, float]]) -> list[float]:
    """How long those events took that ended in one of the spans of time, or began there."""
    return [
        took
        for when, took in events
        if any(began <= when and when - took <= ended for began, ended in spans)
    ]


def main() -> None:
    """Measure and print the table."""
    phases = Phases()
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name:
        folder = Path(name)
        address = f"unix://{folder}/daemon.sock"
        probe = folder / "probe"
        command = (sys.executable, "-m", "tests.bench.probed_daemon", str(probe))
        options = ("--listen", address, "--workers", "1", "--state", f"{folder}/state")
        with running(*command, *options, "--log-level", "error"):
            calls = folder / "calls.py"
            calls.write_text(LIBRARY.format(name="calls", operators=1, version=0))
            with oc.connect(address) as session:
                session.load(calls)
            ends = threading.Event()
            caller = threading.Thread(target=call_all_the_time, args=(address, ends))
            caller.start()
            try:
                change(address, folder, phases)
            finally:
                ends.set()
                caller.join()
        found = read_probe(probe)
    table = Table(title="one event loop's pauses")
    table.add_column("meanwhile")
    headings = ("seconds each", "median ms", "99.9 % ms", "longest ms", "longest collection ms")
    for heading in headings:
        table.add_column(heading, justify="right")
    collections = [each for what, events in found.items() if what != "loop" for each in events]
    for what, spans in phases.times.items():
        pauses = within(found["loop"], spans)
        table.add_row(
            what,
            f"{statistics.median(ended - began for began, ended in spans):.2f}",
            f"{statistics.median(pauses) * 1e3:.2f}",
            f"{statistics.quantiles(pauses, n=1000)[-1] * 1e3:.1f}",
            f"{max(pauses) * 1e3:.0f}",
            f"{max(within(collections, spans), default=0.0) * 1e3:.0f}",
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
