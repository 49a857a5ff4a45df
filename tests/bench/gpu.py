"""Costs of the dispatcher on a GPU, and of copies to it and from it. `make gpu` runs it.

Plain CuPy, and copies of pinned memory made by hand, are timed beside it in the same run.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch import Tensor, ops
from opdispatch import array_api as xp
from opdispatch.arrays import CupyBackend
from opdispatch.arrays.cupy_errors import explain_absence, import_cupy
from tests.bench.timing import median_seconds

HERE = "cuda:0"
MIB = 1 << 20
COPIED_BYTES = 256 * MIB
MOVED_BYTES = (4096, MIB, COPIED_BYTES)
PLAIN = "cudaMemcpyAsync of pinned memory"


def calls(cupy: Any) -> Table:
    """A call of an operator of the library ``array`` beside CuPy's function."""
    x = cupy.ones(4, np.float32)
    tensor, held = Tensor(x), ops.array.add.Tensor
    seconds = median_seconds(
        {
            "cupy.add(x, x)": lambda: cupy.add(x, x),
            "ops.array.add.Tensor, held": lambda: held(x, x),
            "ops.array.add(x, x)": lambda: ops.array.add(x, x),
            "array_api.add(x, x)": lambda: xp.add(x, x),
            "Tensor + Tensor": lambda: tensor + tensor,
        }
    )
    cupy.cuda.Device().synchronize()
    table = _table("four float32 elements on a GPU", "call", "us", "over CuPy's")
    plain = seconds["cupy.add(x, x)"]
    for name, took in seconds.items():
        table.add_row(name, f"{took * 1e6:.2f}", f"{(took - plain) * 1e6:.2f}")
    return table


def uploads(cupy: Any, backend: CupyBackend) -> Table:
    """A large array to the GPU, complete there, compared with a copy of pinned memory."""
    source = np.ones(COPIED_BYTES, np.uint8)
    pinned = cupy.cuda.alloc_pinned_memory(COPIED_BYTES)
    np.frombuffer(pinned, np.uint8, COPIED_BYTES)[:] = 1
    target, stream = cupy.empty(COPIED_BYTES, np.uint8), cupy.cuda.Stream.null
    runtime = cupy.cuda.runtime

    def copy_pinned() -> None:
        runtime.memcpyAsync(
            target.data.ptr, pinned.ptr, COPIED_BYTES, runtime.memcpyHostToDevice, stream.ptr
        )
        stream.synchronize()

    def complete(copy: Callable[[], object]) -> Callable[[], None]:
        def call() -> None:
            copy()
            stream.synchronize()

        return call

    seconds = median_seconds(
        {
            PLAIN: copy_pinned,
            "from_host, through pinned pieces": complete(lambda: backend.from_host(source, HERE)),
            "assign, through pinned pieces": complete(lambda: backend.assign(target, source)),
            "cupy.asarray": complete(lambda: cupy.asarray(source)),
            "ndarray.set": complete(lambda: target.set(source)),
        }
    )
    return _speeds("to a GPU", seconds)


def downloads(cupy: Any, backend: CupyBackend) -> Table:
    """A large array from the GPU, beside a copy to memory that is pinned already."""
    pinned = cupy.cuda.alloc_pinned_memory(COPIED_BYTES)
    source, stream = cupy.ones(COPIED_BYTES, np.uint8), cupy.cuda.Stream.null
    runtime = cupy.cuda.runtime

    def copy_pinned() -> None:
        runtime.memcpyAsync(
            pinned.ptr, source.data.ptr, COPIED_BYTES, runtime.memcpyDeviceToHost, stream.ptr
        )
        stream.synchronize()

    seconds = median_seconds(
        {
            PLAIN: copy_pinned,
            "to_host, through pinned pieces": lambda: backend.to_host(source),
            "ndarray.get": lambda: source.get(),
        }
    )
    return _speeds("from a GPU", seconds)


def moves(cupy: Any, backend: CupyBackend) -> Table:
    """An array of another process on the same GPU, beside the ways that it could take instead."""
    table = _table("an array of another process", "bytes", "way", "us", "GB/s")
    context = multiprocessing.get_context("spawn")
    for size in MOVED_BYTES:
        ours, theirs = context.Pipe()
        process = context.Process(target=_share, args=(theirs, size), daemon=True)
        process.start()
        memory = ours.recv()
        array = cupy.ones(size, np.uint8)

        def read(memory: Any = memory, size: int = size) -> None:
            backend.read_shared(memory, (size,), np.dtype(np.uint8), HERE)

        def copy(array: Any = array) -> None:
            backend.copy(array)
            backend.synchronize(HERE)

        def by_host(array: Any = array) -> None:
            backend.from_host(backend.to_host(array), HERE)
            backend.synchronize(HERE)

        ways: dict[str, Callable[[], object]] = {
            "CUDA IPC: open, copy, close": read,
            "a copy within the process": copy,
            "to the host and back, not sent": by_host,
        }
        for name, took in median_seconds(ways).items():
            table.add_row(f"{size:,}", name, f"{took * 1e6:.1f}", f"{size / took / 1e9:.2f}")
        ours.send(None)
        process.join()
    return table


def _share(pipe: Connection, size: int) -> None:
    array = import_cupy(HERE).ones(size, np.uint8)
    pipe.send(CupyBackend().share(array))
    pipe.recv()


def _speeds(where: str, seconds: dict[str, float]) -> Table:
    table = _table(f"{COPIED_BYTES // MIB} MiB {where}", "way", "ms", "GB/s", "of pinned")
    for name, took in seconds.items():
        speed = f"{COPIED_BYTES / took / 1e9:.1f}"
        table.add_row(name, f"{took * 1e3:.2f}", speed, f"{seconds[PLAIN] / took:.0%}")
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("call", "way") else "right")
    return table


def main() -> None:
    """Time all and print tables; say so where there is no GPU."""
    console = Console(width=100)
    if why := explain_absence():
        console.print(f"no GPU is timed: {why}", markup=False)
        return
    cupy, backend = import_cupy(HERE), CupyBackend()
    console.print(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
    console.print(calls(cupy))
    for measure in (uploads, downloads, moves):
        console.print(measure(cupy, backend))


if __name__ == "__main__":
    main()
