"""Costs of direct calls of two float32 arrays by size, compared with bytes over a unix socket.

The socket's peer adds the arrays that it has received, and returns the sum, as the kernel does. A
second session makes no plans: its calls take the general way. All take turns. Processor time is
that of both processes, the least of all rounds.

    python -m tests.bench.call_sizes
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from tests.bench.data_plane import LIBRARY, Peer, start_daemon
from tests.bench.processor_time import Call, Measured, children_of, measured

KIBIBYTES = (16, 48, 64, 128, 256, 400, 1024, 10240)
ROUNDS = 9
PLANNED, GENERAL, SOCKET = "planned", "general way", "socket"


def calls_of(session: oc.Session, elements: int) -> Call:
    """Return what makes so many calls of two arrays."""
    x, y = np.ones(elements, np.float32), np.ones(elements, np.float32)

    def call(count: int) -> None:
        for _ in range(count):
            session.call("bench::add", x, y)

    return call


def measure(turns: dict[str, tuple[Call, list[int]]], count: int) -> dict[str, list[Measured]]:
    """Return what each takes in each round of so many calls, and the processes that serve it."""
    for call, _ in turns.values():
        call(count)
    found: dict[str, list[Measured]] = {name: [] for name in turns}
    for _ in range(ROUNDS):
        for name, (call, processes) in turns.items():
            found[name].append(measured(call, count, processes))
    return found


def main() -> None:
    """Time all and print the table."""
    names = (PLANNED, GENERAL, SOCKET)
    processor = (f"{name}, us of processors" for name in names)
    table = Table("KiB each", "us", "x socket", *processor, "planned x socket")
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        address, _ = start_daemon(stack, folder)
        (folder / "bench.py").write_text(LIBRARY)
        session, general = (stack.enter_context(oc.connect(address)) for _ in range(2))
        session.load(folder / "bench.py")
        general._calls._plans.learn = lambda *call: None  # type: ignore[method-assign]
        peer = Peer(stack, sys.executable, "unix_socket")
        ours = [os.getpid(), *(each.pid for each in session.interpreters())]
        for size in KIBIBYTES:
            elements = size << 8
            found = measure(
                {
                    PLANNED: (calls_of(session, elements), ours),
                    GENERAL: (calls_of(general, elements), ours),
                    SOCKET: (
                        lambda count, elements=elements: peer.calls(elements, count),
                        [peer.process, *children_of(peer.process)],
                    ),
                },
                max(20, min(200, 40_000 // size)),
            )
            elapsed = [statistics.median(m.elapsed for m in found[name]) for name in names]
            used = [min(m.used for m in found[name]) for name in names]
            table.add_row(
                f"{size:,}",
                f"{elapsed[0] * 1e6:,.0f}",
                f"{elapsed[0] / elapsed[2]:.1f}",
                *(f"{each * 1e6:,.0f}" for each in used),
                f"{used[0] / used[2]:.1f}",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
