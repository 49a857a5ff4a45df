"""Processor time and context switches of one direct call, compared with bytes over a unix socket.

All processes that take part are counted. Both take turns, and their ratio is what counts: other
load of the machine lengthens a call, and changes little of what its processors do for it.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import opdispatch_client as oc
from tests.bench.data_plane import LIBRARY, Peer, start_daemon

CALLS = 4000
ROUNDS = 9


def processor_seconds(processes: Sequence[int]) -> float:
    """Return what all threads of the processes have used, in user and in kernel mode."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


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


def measured(
    call_all: Callable[[], object], processes: Sequence[int]
) -> tuple[float, float, float]:
    """Return of a call: microseconds elapsed, those of all processors, and context switches."""
    used, switches = processor_seconds(processes), context_switches(processes)
    began = time.perf_counter()
    call_all()
    elapsed = time.perf_counter() - began
    return (
        elapsed / CALLS * 1e6,
        (processor_seconds(processes) - used) / CALLS * 1e6,
        (context_switches(processes) - switches) / CALLS,
    )


def main() -> None:
    """Time both, and print them."""
    with tempfile.TemporaryDirectory(prefix="od-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        address, _ = start_daemon(stack, folder)
        (folder / "bench.py").write_text(LIBRARY)
        session = stack.enter_context(oc.connect(address))
        session.load(folder / "bench.py")
        peer = Peer(stack, sys.executable, "unix_socket")
        ours = [os.getpid(), session.interpreters()[0].pid]
        theirs = [peer.process, *children_of(peer.process)]
        x = np.ones(4, np.float32)

        def call_all() -> None:
            for _ in range(CALLS):
                session.call("bench::add", x, x)

        call_all()
        rounds = [
            (measured(call_all, ours), measured(lambda: peer.calls(4, CALLS), theirs))
            for _ in range(ROUNDS)
        ]
    for place, side in enumerate(("opdispatch, direct", "Python over a unix socket")):
        elapsed = statistics.median(each[place][0] for each in rounds)
        used = statistics.median(each[place][1] for each in rounds)
        switches = statistics.median(each[place][2] for each in rounds)
        print(
            f"{side:27} {elapsed:6.0f} us a call, {used:6.0f} us of processor time, "
            f"{switches:.1f} context switches"
        )
    ratios = [statistics.median(each[0][of] / each[1][of] for each in rounds) for of in (0, 1)]
    print(f"{ratios[0]:.1f} times as long, {ratios[1]:.1f} times the processor time")


if __name__ == "__main__":
    main()
