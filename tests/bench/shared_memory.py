"""Costs of tensors in shared memory between two processes, compared with the machine's.

The floor adds two arrays in place in memory that both processes have mapped, with a packet each
way; "copied" copies the arguments in and the result out as well. Ours are calls of a session,
directly to an interpreter, whose kernel makes an array of its own unless it is given one to write
to. In brackets, how many times the first floor it takes.

    python -m tests.bench.shared_memory
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import opdispatch_client as oc
from opdispatch_wire.shared_memory.call_memory import copy_elements
from opdispatch_wire.shared_memory.shared_mapping import PAGE
from tests.bench.timing import median_seconds

SIZES = {"16 B": 4, "64 KiB": 1 << 14, "1 MB": 250_000, "10 MB": 2_500_000}

SHARED = "floor: shared already, added in place"
WARM_UP_CALLS = 5

LIBRARY = """
import numpy as np

from opdispatch import Library

lib = Library("bench", "DEF")
lib.define("add(Tensor x, Tensor y) -> Tensor")
lib.impl("add", lambda x, y: x + y, "CPU")
lib.define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
lib.impl("add_out", lambda x, y, *, out: np.add(x, y, out=out), "CPU")
"""

FLOOR = """
import mmap, socket, sys
import numpy as np
sock, n, stride = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[3]), int(sys.argv[4])
memory = mmap.mmap(int(sys.argv[2]), 3 * stride)
x, y, z = (np.frombuffer(memory, np.float32, n, i * stride) for i in range(3))
while sock.recv(1):
    np.add(x, y, out=z)
    sock.send(b".")
"""


class Floor:
    """Memory that is shared already, and a packet to say that it is to be added."""

    def __init__(self, n: int) -> None:
        stride = -(-4 * n // PAGE) * PAGE
        descriptor = os.memfd_create("floor")
        os.ftruncate(descriptor, 3 * stride)
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        passed = (theirs.fileno(), descriptor)
        self.process = subprocess.Popen(
            [sys.executable, "-c", FLOOR, *map(str, (*passed, n, stride))], pass_fds=passed
        )
        theirs.close()
        self.memory = mmap.mmap(descriptor, 3 * stride)
        os.close(descriptor)
        self.x, self.y, self.z = (
            np.frombuffer(self.memory, np.float32, n, i * stride) for i in range(3)
        )
        self.x[:] = self.y[:] = 1
        self.out = np.empty_like(self.x)

    def signal(self) -> None:
        self.sock.send(b".")
        self.sock.recv(1)

    def copied(self, x: np.ndarray, y: np.ndarray) -> None:
        copy_elements(self.x.view(np.uint8), x, x.dtype)
        copy_elements(self.y.view(np.uint8), y, y.dtype)
        self.signal()
        copy_elements(self.out.view(np.uint8), self.z, self.z.dtype)

    def close(self) -> None:
        self.sock.close()
        self.process.wait(timeout=10)


class Stage:
    """A daemon with one interpreter, and a session that calls that one directly."""

    def __init__(self, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="od-bench-")))
        address = f"unix://{folder}/daemon.sock"
        serve = (sys.executable, "-m", "opdispatch_client.cli", "serve", "--listen", address)
        options = ("--workers", "1", "--state", str(folder / "state"), "--log-level", "error")
        daemon = subprocess.Popen((*serve, *options), stdout=subprocess.PIPE)
        stack.callback(daemon.wait, 20)
        stack.callback(daemon.terminate)
        assert daemon.stdout is not None
        daemon.stdout.readline()
        self.session = stack.enter_context(oc.connect(address, lane="local"))
        (folder / "bench.py").write_text(LIBRARY)
        self.session.load(folder / "bench.py")


def contestants(session: oc.Session, floor: Floor, n: int) -> dict[str, Callable[[], object]]:
    """The calls to time, of arrays of that many float32s."""
    x, y, out = (np.full(n, value, np.float32) for value in (1, 2, 0))
    here = [session.empty(n, np.float32) for _ in range(3)]
    here[0][:], here[1][:] = 1, 2
    add, add_out = session.ops.bench.add, session.ops.bench.add_out
    calls: dict[str, Callable[[], object]] = {
        SHARED: floor.signal,
        "floor: copied in and out": lambda: floor.copied(x, y),
        "ordinary arrays": lambda: add(x, y),
        "ordinary arrays, one to write to": lambda: add_out(x, y, out=out),
        "arrays of empty, result made by the kernel": lambda: add(*here[:2]),
        "arrays of empty, one to write to": lambda: add_out(*here[:2], out=here[2]),
    }
    for call in list(calls.values())[2:]:
        for _ in range(WARM_UP_CALLS):  # the first goes through the daemon
            call()
    assert (add(x, y) == 3).all()
    assert (out == 3).all()
    assert (here[2] == 3).all()
    return calls


def main() -> None:
    """Print the table."""
    table = Table("two float32 arrays in, one out", *SIZES, title="direct calls")
    columns: list[dict[str, float]] = []
    with ExitStack() as stack:
        session = Stage(stack).session
        for n in reversed(SIZES.values()):  # the largest first, to warm everybody up
            floor = Floor(n)
            columns.insert(0, median_seconds(contestants(session, floor, n)))
            floor.close()
    for name in columns[0]:
        cells = [f"{c[name] * 1e6:,.0f} us ({c[name] / c[SHARED]:.1f})" for c in columns]
        table.add_row(name, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
