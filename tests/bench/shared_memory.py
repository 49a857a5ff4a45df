"""What tensors in shared memory cost between two processes, beside what the machine costs.

The floor adds two arrays in place in memory that both processes have mapped, with a packet each
way; "copied" copies the arguments in and the result out as well. Ours encodes, sends and decodes
calls, whose kernel makes an array of its own unless it is given one to write to.

    python -m tests.bench.shared_memory
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch_wire.call_memory import copy_elements
from opdispatch_wire.shared_mapping import PAGE
from tests.bench.timing import median_seconds
from tests.shared_memory_lane import Caller

SIZES = {"16 B": 4, "64 KiB": 1 << 14, "1 MB": 250_000, "10 MB": 2_500_000}

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
        copy_elements(self.x, x)
        copy_elements(self.y, y)
        self.signal()
        copy_elements(self.out, self.z)

    def close(self) -> None:
        self.sock.close()
        self.process.wait(timeout=10)


def contestants(caller: Caller, floor: Floor, n: int) -> dict[str, Callable[[], object]]:
    """The calls to time, of arrays of that many float32s."""
    x, y, out = (np.full(n, value, np.float32) for value in (1, 2, 0))
    shape, dtype = (n,), np.dtype(np.float32)
    here = [caller.arena.empty(shape, dtype) for _ in range(3)]
    here[0][:], here[1][:] = 1, 2
    calls: dict[str, Callable[[], object]] = {
        "floor: shared already, added in place": floor.signal,
        "floor: copied in and out": lambda: floor.copied(x, y),
        "ordinary arrays": lambda: caller.call("add", x, y),
        "ordinary arrays, one to write to": lambda: caller.call("add_out", x, y, out=out),
        "arrays of empty, result made by the kernel": lambda: caller.call("add", *here[:2]),
        "arrays of empty, one to write to": lambda: caller.call("add_out", *here[:2], out=here[2]),
    }
    assert (caller.call("add", x, y) == 3).all()
    return calls


def main() -> None:
    """Prints the table."""
    table = Table("two float32 arrays in, one out", *SIZES, title="shared memory")
    columns: list[dict[str, float]] = []
    for n in reversed(SIZES.values()):
        caller, floor = Caller(), Floor(n)
        columns.insert(0, median_seconds(contestants(caller, floor, n)))
        caller.close()
        floor.close()
    for name in columns[0]:
        table.add_row(name, *(f"{column[name] * 1e6:,.0f} us" for column in columns))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
