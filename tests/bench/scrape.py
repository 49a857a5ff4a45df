"""Processor time of a scrape of many operators: ``python -m tests.bench.scrape [OPERATORS]``.

Beside that of copying the same text and of sending it through a socket, which no server can do
without. Nothing here listens: the text is made as ``/metrics`` makes it.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Callable

from opdispatch_server.daemon.interpreters.totals import MOST_PAST_SERIES, InterpreterTotals
from opdispatch_server.daemon.monitoring.call_text import (
    CALL_FAMILIES,
    CALL_LABELS,
    CallText,
    Piece,
)
from opdispatch_server.daemon.monitoring.triton import (
    TRITON_FAMILIES,
    TRITON_LABELS,
)
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.metrics.call_table import CallSums, SharedCounts

REPEATS = 7


def cpu(function: Callable[[], object]) -> float:
    """Return the milliseconds of this thread's processor time that a call takes."""
    began = time.thread_time()
    function()
    return (time.thread_time() - began) * 1e3


def send(pieces: list[Piece]) -> float:
    """Return the milliseconds that this thread takes to send them to another one."""
    ours, theirs = socket.socketpair()

    def read() -> None:
        while theirs.recv(1 << 20):
            pass

    reader = threading.Thread(target=read)
    reader.start()
    took = cpu(lambda: [ours.sendall(piece) for piece in pieces])
    ours.close()
    reader.join()
    theirs.close()
    return took


def main(operators: int) -> None:
    """Print it for the first scrape, and for later ones by how many were called meanwhile."""
    gc.freeze()  # as a daemon does
    counts = CallCounts()
    names = [f"bench::{'f' * (7 * n % 50)}{n}" for n in range(operators)]  # of many lengths
    rows = [counts.row_of(Series(name, "CPU", "bench", "1")) for name in names]
    for row in rows:
        counts.note(row, 70_000, 20_000, failed=False)
    shared = SharedCounts.open(os.getpid(), counts.descriptor)
    assert shared is not None, "the memory is this process's own"
    ours = CallText(CALL_FAMILIES, CALL_LABELS)
    triton = CallText(TRITON_FAMILIES, TRITON_LABELS)

    def scrape(*texts: CallText) -> None:
        sums = CallSums(MOST_PAST_SERIES)
        sums.add(shared.read())
        for text in texts:
            for piece in text.write(sums.table):
                del piece  # as it is sent

    print(f"{operators} operators, all of which have been called")
    print(f"first scrape           {cpu(lambda: scrape(ours)):8.1f} ms")
    for texts, about in (((ours,), ""), ((ours, triton), " with Triton's names")):
        for called in (operators, operators // 10, 0):
            took = []
            for _ in range(REPEATS):
                for row in rows[:called]:
                    counts.note(row, 70_000, 20_000, failed=False)
                took.append(cpu(lambda texts=texts: scrape(*texts)))  # type: ignore[misc]
            print(f"{called:6} called meanwhile {min(took):8.1f} ms{about}")
    sums = CallSums(MOST_PAST_SERIES)
    sums.add(shared.read())
    pieces = [piece for text in (ours, triton) for piece in text.write(sums.table)]
    size = sum(map(len, pieces)) / 1e6
    joined = min(cpu(lambda: b"".join([bytes(memoryview(p)) for p in pieces])) for _ in range(3))
    sent = min(send(pieces) for _ in range(3))
    print(f"{size:.1f} MB of text: to copy it {joined:.1f} ms, to send it {sent:.1f} ms")
    totals = InterpreterTotals()
    print(f"an empty daemon's counts {cpu(totals.read):.3f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
