"""Costs of registering, in time, in memory, and to concurrent callers: ``make bench``.

An operator here is one definition and two kernels, each registered, and undone, on its own:
three publications. Parsing its schema is part of registering it. Where torch is installed, its
``Library`` registers as many, each with one kernel, in turn with the one here. The readers' table
times every single call of another operator while a second thread registers and undoes without a
pause; next to it stands the same with a second thread that only counts, since two busy threads of
one interpreter take turns every switch interval, dispatcher or not.
"""

from __future__ import annotations

import gc
import gzip
import json
import statistics
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch import (
    Dispatcher,
    DispatchKey,
    KernelFunction,
    Library,
    OperatorHandle,
    RegistrationHandle,
    parse_schema,
)

try:
    import torch
except ImportError:
    torch = None

OPERATORS = 10_000
ROUNDS = 5
READER_SECONDS = 2.0
X = np.ones(2)
SCHEMAS = Path(__file__).parents[1] / "conformance" / "golden" / "schemas.json.gz"


def register(dispatcher: Dispatcher, count: int) -> list[RegistrationHandle]:
    """Define that many operators with two kernels each."""
    handles = []
    for number in range(count):
        schema = parse_schema(f"b::op{number}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
        handles.append(dispatcher.register_def(schema))
        kernel = KernelFunction.from_unboxed(lambda x, y, *, alpha: x)
        keys = (DispatchKey.CPU, DispatchKey.CUDA)
        handles += [dispatcher.register_impl(schema.name, key, kernel) for key in keys]
    return handles


def undo(handles: list[RegistrationHandle]) -> None:
    """Undoe each registration on its own."""
    for handle in handles:
        handle.close()


def seconds(work: Callable[[], object]) -> float:
    """How long ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bulk_seconds() -> tuple[float, float]:
    """The median seconds to register, and to undo, all operators."""
    registering, undoing = [], []
    for _ in range(ROUNDS):
        dispatcher, handles = Dispatcher(), []
        gc.collect()
        registering.append(seconds(lambda: handles.extend(register(dispatcher, OPERATORS))))  # noqa: B023
        undoing.append(seconds(lambda: undo(handles)))  # noqa: B023
    return statistics.median(registering), statistics.median(undoing)


def _fill(library: object) -> float:
    """Seconds of this thread to define all operators in a library, each with one kernel."""
    kernel = lambda x, y, *, alpha: x  # noqa: E731
    start = time.thread_time()
    for number in range(OPERATORS):
        library.define(f"op{number}(Tensor x, Tensor y, *, Scalar alpha=1) -> Tensor")
        library.impl(f"op{number}", kernel, "CPU")
    return time.thread_time() - start


def seconds_beside_torch() -> tuple[float, float]:
    """The least seconds to fill a library, here and in torch."""
    ours, theirs, kept_alive = [], [], []
    for number in range(ROUNDS):
        gc.collect()
        ours.append(_fill(Library("beside_torch", "DEF", dispatcher=Dispatcher())))
        kept_alive.append(torch.library.Library(f"opdispatch_registration_{number}", "DEF"))
        theirs.append(_fill(kept_alive[-1]))
    return min(ours), min(theirs)


def parsing_seconds() -> tuple[int, float]:
    """How many schemas PyTorch 2.13 has, and the median seconds to parse them all."""
    texts = [text for text, _ in json.loads(gzip.decompress(SCHEMAS.read_bytes()))["real"]]
    times = [seconds(lambda: [parse_schema(text) for text in texts]) for _ in range(ROUNDS)]
    return len(texts), statistics.median(times)


def memory_per_operator(count: int = 1_000) -> tuple[float, float]:
    """Bytes of one operator and its handles: registered, and after it has been called."""
    dispatcher = Dispatcher()
    undo(register(dispatcher, 1))  # what all operators share
    gc.collect()
    tracemalloc.start()
    handles = register(dispatcher, count)
    registered = tracemalloc.get_traced_memory()[0]
    for number in range(count):
        dispatcher.get_schema(f"b::op{number}")(X, X)
    called = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    undo(handles)
    return registered / count, called / count


def read_while(work: Callable[[], object]) -> dict[str, list[float]]:
    """The seconds of single calls and look-ups while another thread repeats ``work``."""
    dispatcher = Dispatcher()
    schema = parse_schema("r::op(Tensor x, Tensor y) -> Tensor")
    dispatcher.register_def(schema)
    kernel = KernelFunction.from_unboxed(lambda x, y: x)
    dispatcher.register_impl(schema.name, DispatchKey.CPU, kernel)
    op: OperatorHandle = dispatcher.get_schema(schema.name)
    actions = {"call": lambda: op(X, X), "look-up": lambda: dispatcher.find_op(schema.name)}
    taken: dict[str, list[float]] = {name: [] for name in actions}
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            work()

    other = threading.Thread(target=repeat)
    other.start()
    clock = time.perf_counter
    end = clock() + READER_SECONDS
    try:
        while clock() < end:
            for name, action in actions.items():
                start = clock()
                action()
                taken[name].append(clock() - start)
    finally:
        done.set()
        other.join()
    return taken


def reader_rows() -> dict[str, dict[str, list[float]]]:
    """Single calls and look-ups, by what the other thread does."""
    writers = Dispatcher()
    return {
        "nothing": read_while(lambda: time.sleep(0.05)),
        "counts": read_while(lambda: sum(range(1_000))),
        "registers and undoes": read_while(lambda: undo(register(writers, 10))),
    }


def main() -> None:
    """Measure and print both tables."""
    table = Table(title=f"{OPERATORS:,} operators with two kernels each")
    table.add_column("what")
    table.add_column("measured", justify="right")
    registering, undoing = bulk_seconds()
    registered, called = memory_per_operator()
    table.add_row("register, one by one", f"{registering:.2f} s")
    table.add_row("undo, one by one", f"{undoing:.2f} s")
    table.add_row("memory an operator, registered", f"{registered / 1024:.1f} KiB")
    table.add_row("memory an operator, called once", f"{called / 1024:.1f} KiB")
    count, parsing = parsing_seconds()
    table.add_row(f"parse PyTorch's {count:,} schemas", f"{parsing:.2f} s")
    if torch is not None:
        ours, theirs = seconds_beside_torch()
        table.add_row("with one kernel each, CPU time", f"{ours:.2f} s")
        table.add_row("the same by torch.library", f"{theirs:.2f} s")
    Console(width=100).print(table)

    interval = sys.getswitchinterval() * 1e3
    table = Table(title=f"single reads beside another thread (switch interval {interval:g} ms)")
    for heading in ("the other thread", "read", "median us", "99.9 % us", "longest ms"):
        table.add_column(heading, justify="left" if heading[0] in "t" else "right")
    for writer, reads in reader_rows().items():
        for name, taken in reads.items():
            late = statistics.quantiles(taken, n=1000)[-1]
            median = statistics.median(taken)
            longest = f"{max(taken) * 1e3:.1f}"
            table.add_row(writer, name, f"{median * 1e6:.2f}", f"{late * 1e6:.1f}", longest)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
