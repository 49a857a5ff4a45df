"""Costs of loading a large library: ``python -m tests.bench.library_loads [OPERATORS]``.

The library defines so many operators and gives each a kernel. Times are from a client's request to
its answer; processor time is that of the daemon and its interpreters. Beside it stands the same
module imported in this process, into a dispatcher of its own.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from opdispatch import Dispatcher, DispatchKey, KernelFunction, parse_schema
from opdispatch_client import connect
from opdispatch_stress.private_daemon import PrivateDaemon, private_daemon
from tests.bench.processor_time import processor_seconds

ROUNDS = 5

TEXT = """\
from opdispatch import Library

lib = Library("bench", "DEF")


def kernel(x, y, *, alpha=1):
    return x


for number in range({operators}):
    lib.define(f"op{{number}}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
    lib.impl(f"op{{number}}", kernel, "CPU")
# version {version}
"""


class Cost(NamedTuple):
    """Seconds by the clock, and of processors."""

    elapsed: float
    processors: float


def load_costs(operators: int, interpreters: int) -> dict[str, list[Cost]]:
    """Return those of loads, of loads of a new version over an old one, and of unloads."""
    taken: dict[str, list[Cost]] = {"load": [], "load a new version": [], "unload": []}
    with private_daemon(workers=interpreters) as daemon, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.py"
        with connect(daemon.address) as session:
            for version in range(ROUNDS):
                for what in ("load", "load a new version"):
                    text = TEXT.format(operators=operators, version=f"{version} {what}")
                    path.write_text(text)
                    taken[what].append(cost(daemon, lambda: session.load(path)))
                taken["unload"].append(cost(daemon, lambda: session.unload("bench")))
    return taken


def cost(daemon: PrivateDaemon, change: Callable[[], object]) -> Cost:
    """Return what a change costs the client's user, and the daemon with its interpreters."""
    processes = list(daemon.processes())
    used, start = processor_seconds(processes), perf_counter()
    change()
    return Cost(perf_counter() - start, processor_seconds(processes) - used)


def in_process_cost(operators: int) -> list[Cost]:
    """Return those of the same registrations in this process, published at once."""
    taken = []
    for _ in range(ROUNDS):
        dispatcher = Dispatcher()
        kernel = KernelFunction.from_unboxed(lambda x, y, *, alpha=1: x)
        used, start = process_time(), perf_counter()
        with dispatcher.transaction():
            for number in range(operators):
                schema = parse_schema(
                    f"bench::op{number}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor"
                )
                dispatcher.register_def(schema)
                dispatcher.register_impl(schema.name, DispatchKey.CPU, kernel)
        taken.append(Cost(perf_counter() - start, process_time() - used))
    return taken


def main(operators: int) -> None:
    """Measure and print the table."""
    table = Table(title=f"a library of {operators:,} operators, median and longest s")
    for heading in ("what", "interpreters", "elapsed", "of processors"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    costs = {("register in this process", ""): in_process_cost(operators)}
    for interpreters in (1, 2, 4):
        for what, taken in load_costs(operators, interpreters).items():
            costs[what, str(interpreters)] = taken
    for (what, interpreters), taken in costs.items():
        shown = [f"{statistics.median(c):.2f} {max(c):.2f}" for c in zip(*taken, strict=True)]
        table.add_row(what, interpreters, *shown)
    Console(width=100).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
