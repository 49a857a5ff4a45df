"""Costs of loading a large library, from a client's request to its answer: ``make bench``.

The library defines 1,000 operators and gives each a kernel. Beside it stands the same module
imported in this process, into a dispatcher of its own.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from opdispatch import Dispatcher, DispatchKey, KernelFunction, parse_schema
from opdispatch_client import connect
from opdispatch_stress.private_daemon import private_daemon

OPERATORS = 1_000
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


def load_seconds(interpreters: int) -> dict[str, list[float]]:
    """The seconds of loads, of loads of a new version over an old one, and of unloads."""
    taken: dict[str, list[float]] = {"load": [], "reload": [], "unload": []}
    with private_daemon(workers=interpreters) as daemon, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.py"
        with connect(daemon.address) as session:
            for version in range(ROUNDS):
                for what in ("load", "reload"):
                    path.write_text(TEXT.format(operators=OPERATORS, version=f"{version} {what}"))
                    start = perf_counter()
                    session.load(path)
                    taken[what].append(perf_counter() - start)
                start = perf_counter()
                session.unload("bench")
                taken["unload"].append(perf_counter() - start)
    return taken


def in_process_seconds() -> float:
    """The same registrations in this process, published at once."""
    times = []
    for _ in range(ROUNDS):
        dispatcher = Dispatcher()
        kernel = KernelFunction.from_unboxed(lambda x, y, *, alpha=1: x)
        start = perf_counter()
        with dispatcher.transaction():
            for number in range(OPERATORS):
                schema = parse_schema(
                    f"bench::op{number}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor"
                )
                dispatcher.register_def(schema)
                dispatcher.register_impl(schema.name, DispatchKey.CPU, kernel)
        times.append(perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Measure and print the table."""
    table = Table(title=f"a library of {OPERATORS:,} operators")
    for heading in ("what", "interpreters", "median s", "longest s"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row("register in this process", "", f"{in_process_seconds():.3f}", "")
    for interpreters in (1, 2, 4):
        for what, times in load_seconds(interpreters).items():
            median, longest = statistics.median(times), max(times)
            table.add_row(what, str(interpreters), f"{median:.3f}", f"{longest:.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
