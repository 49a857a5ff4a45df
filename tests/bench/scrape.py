"""Processor time of scrapes of many operators: ``python -m tests.bench.scrape [OPERATORS]``.

First that of a daemon whose ``/metrics`` is read over HTTP, with all that a scrape takes of its
threads; then that of making the same text alone, with and without Triton's names, beside that of
sending it through a socket, which no server can do without.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import opdispatch_client as oc
from opdispatch_server.daemon.interpreters.totals import MOST_PAST_SERIES, InterpreterTotals
from opdispatch_server.daemon.monitoring.call_exposition import (
    CALL_FAMILIES,
    CALL_LABELS,
    CallExposition,
    Piece,
)
from opdispatch_server.daemon.monitoring.triton import (
    TRITON_FAMILIES,
    TRITON_LABELS,
)
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.metrics.call_table import CallSums, SharedCounts
from tests.bench.processor_time import processor_seconds

REPEATS = 7
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LIBRARY = """\
from opdispatch import Library

lib = Library("bench", "DEF")
for number in range({operators}):
    name = "f" * (7 * number % 50) + f"op{{number}}"
    lib.define(f"{{name}}(int x) -> int")
    lib.impl(name, lambda x: x, "CompositeExplicitAutograd")
"""


def operator_name(number: int) -> str:
    """Return a name as the library has it: of any length up to 60 characters."""
    return f"bench::{'f' * (7 * number % 50)}op{number}"


def cpu(function: Callable[[], object]) -> float:
    """Return the milliseconds of this thread's processor time that a call takes."""
    began = time.thread_time()
    function()
    return (time.thread_time() - began) * 1e3


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str, int]]:
    """Run a daemon: its process id, its address, and the port at which it serves HTTP."""
    address = f"unix://{folder}/daemon.sock"
    command = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--listen", address)
    options = ("--workers", "1", "--state", f"{folder}/state", "--http", "127.0.0.1:0")
    quiet = ("--log-level", "error")
    daemon = subprocess.Popen((*command, *options, *quiet), stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        output = daemon.stdout.readline() + daemon.stdout.readline()
        found = re.search(r"http://\S+:(\d+)/", output)
        if found is None:
            sys.exit(f"the daemon did not start: {output}")
        yield daemon.pid, address, int(found[1])
    finally:
        daemon.terminate()
        daemon.wait()


def read_all(port: int) -> int:
    """Scrape once, and return how many bytes came."""
    size, buffer = 0, bytearray(1 << 20)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(REQUEST)
        while received := connection.recv_into(buffer):
            size += received
    return size


def whole(operators: int) -> None:
    """Print what scrapes take of a daemon whose operators have all been called."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as (pid, address, port):
        (Path(name) / "bench.py").write_text(LIBRARY.format(operators=operators))
        with oc.connect(address) as session:
            session.load(Path(name) / "bench.py")
            read_all(port)  # what the first scrape of any daemon loads
            for number in range(operators):
                session.call(operator_name(number), number)
            taken = []
            for _ in range(1 + REPEATS):
                began = processor_seconds([pid])
                size = read_all(port)
                taken.append((processor_seconds([pid]) - began) * 1e3)
                for number in range(operators // 10):
                    session.call(operator_name(number), number)
    first, *later = taken
    print(f"{operators} operators, all of which have been called; {size / 1e6:.1f} MB over HTTP")
    print(f"first scrape           {first:8.1f} ms")
    print(f"later ones             {min(later):8.1f} to {max(later):.1f} ms")


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


def text(operators: int) -> None:
    """Print what the text takes: the first, and later ones by how many were called meanwhile."""
    gc.freeze()  # as a daemon does
    counts = CallCounts()
    names = [operator_name(number) for number in range(operators)]
    rows = [counts.row_of(Series(name, "CPU", "bench", "1")) for name in names]
    for row in rows:
        counts.note(row, 70_000, 20_000, failed=False)
    shared = SharedCounts.open(os.getpid(), counts.descriptor)
    assert shared is not None, "the memory is this process's own"
    ours = CallExposition(CALL_FAMILIES, CALL_LABELS)
    triton = CallExposition(TRITON_FAMILIES, TRITON_LABELS)

    def scrape(*texts: CallExposition) -> None:
        sums = CallSums(MOST_PAST_SERIES)
        sums.add(shared.read())
        for text in texts:
            for piece in text.write(sums.table):
                del piece  # as it is sent

    print("the text alone")
    print(f"first                  {cpu(lambda: scrape(ours)):8.1f} ms")
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
    print(f"{size:.1f} MB of text: to copy it twice {joined:.1f} ms, to send it {sent:.1f} ms")
    totals = InterpreterTotals()
    print(f"an empty daemon's counts {cpu(totals.read):.3f} ms")


def main(operators: int) -> None:
    """Print both."""
    whole(operators)
    text(operators)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
