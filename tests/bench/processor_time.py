"""Processor time and context switches of each kind of call, compared with bytes over a unix socket.

All processes that take part are counted. All kinds take turns, and the ratios are what counts:
other load of the machine lengthens a call, and changes little of what its processors do for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from opdispatch import Tensor
from tests.bench.data_plane import LIBRARY, Peer, start_daemon

ROUNDS = 5
SECONDS = 0.4
"""How long the calls of a kind take in a round, about."""
SOCKET = "Python over a unix socket"
STEPS = 100
"""How many additions a program has, and as many calls of the socket are its measure."""

Call = Callable[[int], object]
"""Makes so many calls."""


def processor_seconds(processes: Sequence[int]) -> float:
    """Return what all threads of the processes have used, in user and in kernel mode."""
    # Linux's clock of a process: see clock_getcpuclockid. /proc counts in steps of 10 ms.
    return sum(time.clock_gettime(~process << 3 | 2) for process in processes)


def children_of(process: int) -> list[int]:
    """Return the children of a process that has one thread."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(each) for each in children.split()]


def context_switches(processes: Sequence[int]) -> int:
    """Return how often threads of the processes have slept, or had to make room for others."""
    switches = 0
    for process in processes:
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):  # it has just ended
                for line in (thread / "status").read_text().splitlines():
                    if "ctxt_switches" in line:
                        switches += int(line.split()[1])
    return switches


class Measured(NamedTuple):
    """The cost of one call."""

    elapsed: float
    """In seconds."""
    used: float
    """Seconds of all processors."""
    switches: float
    """Context switches of all threads."""


def measured(call: Call, count: int, processes: Sequence[int]) -> Measured:
    """Return what each of so many calls takes."""
    used, switches = processor_seconds(processes), context_switches(processes)
    began = time.perf_counter()
    call(count)
    elapsed = time.perf_counter() - began
    return Measured(
        elapsed / count,
        (processor_seconds(processes) - used) / count,
        (context_switches(processes) - switches) / count,
    )


def kinds_of_calls(stack: ExitStack, folder: Path) -> tuple[dict[str, Call], list[int]]:
    """Return a function for each kind, and the processes that serve them, this one included."""
    address, tcp = start_daemon(stack, folder)
    (folder / "bench.py").write_text(LIBRARY)

    def connect(where: str = address, **settings: Any) -> oc.Session:
        return stack.enter_context(oc.connect(where, **settings))

    session = connect()
    session.load(folder / "bench.py")
    relayed, stream = connect(direct=False), connect(tcp, lane="stream")
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)

    async def open_awaited() -> oc.aio.AsyncSession:
        return await oc.aio.connect(address)

    awaited = loop.run_until_complete(open_awaited())
    stack.callback(lambda: loop.run_until_complete(awaited.close()))
    x, large = np.ones(4, np.float32), np.ones(1 << 18, np.float32)
    tensor, remote = Tensor(x), session.put(x)

    def calls(session: oc.Session, *args: Any) -> Call:
        def call(count: int) -> None:
            for _ in range(count):
                session.call("bench::add", *args)

        return call

    async def await_calls(count: int) -> None:
        for _ in range(count):
            await awaited.call("bench::add", x, x)

    def program(count: int) -> None:
        for _ in range(count):
            with session.program() as p:
                value = x
                for _ in range(STEPS):
                    value = p.call("bench::add", value, x)
                p.output(value)

    def keep(count: int) -> None:
        value = remote
        for _ in range(count):
            value = session.call("bench::add", value, remote, remote=True)

    def keep_submitted(count: int) -> None:
        value = remote
        for _ in range(count):
            value = session.submit("bench::add", value, remote, remote=True).result()

    kinds: dict[str, Call] = {
        "call": calls(session, x, x),
        "call with Tensors": calls(session, tensor, tensor),
        "awaited call": lambda count: loop.run_until_complete(await_calls(count)),
        "map": lambda count: list(session.map("bench::add", [(x, x)] * count)),
        "call of 1 MB": calls(session, large, large),
        "call through the daemon": calls(relayed, x, x),
        "call over a gRPC stream": calls(stream, x, x),
        "call with two remote tensors": calls(session, remote, remote),
        "the same, whose result is kept": keep,
        "the same, submitted": keep_submitted,
        f"program of {STEPS} additions": program,
    }
    lines = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return kinds, [os.getpid(), *map(int, lines), *(each.pid for each in session.interpreters())]


def main() -> None:
    """Time all and print the table."""
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name, ExitStack() as stack:
        kinds, ours = kinds_of_calls(stack, Path(name))
        peer = Peer(stack, sys.executable, "unix_socket")
        theirs = [peer.process, *children_of(peer.process)]
        turns: dict[str, tuple[Call, Sequence[int]]] = {
            SOCKET: (lambda count: peer.calls(4, count), theirs),
            f"{SOCKET}, 1 MB": (lambda count: peer.calls(1 << 18, count), theirs),
        }
        turns |= {kind: (call, ours) for kind, call in kinds.items()}
        counts = {}
        for kind, (call, _) in turns.items():
            call(20)
            began = time.perf_counter()
            call(20)
            counts[kind] = max(int(20 * SECONDS / (time.perf_counter() - began)), 5)
        rounds = [
            {kind: measured(call, counts[kind], pids) for kind, (call, pids) in turns.items()}
            for _ in range(ROUNDS)
        ]
    table = Table("one call", "us", "x socket", "us of processors", "x socket", "switches")
    for kind in turns:
        found = [each[kind] for each in rounds]
        floors = [each[f"{SOCKET}, 1 MB" if "1 MB" in kind else SOCKET] for each in rounds]
        calls = STEPS if kind.startswith("program") else 1
        ratios = [
            statistics.median(
                mine[of] / (calls * floor[of]) for mine, floor in zip(found, floors, strict=True)
            )
            for of in (0, 1)
        ]
        elapsed, used, switches = (statistics.median(column) for column in zip(*found, strict=True))
        table.add_row(
            kind,
            f"{elapsed * 1e6:,.0f}",
            f"{ratios[0]:.2f}",
            f"{used * 1e6:,.0f}",
            f"{ratios[1]:.2f}",
            f"{switches:.1f}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
