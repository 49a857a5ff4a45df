"""A library that looks at the memory of its arguments, and what processes have of shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon, wait_for

# Not the other memfds of ours, whose names are longer.
REGION = "memfd:opdispatch "
N = 50_000
X = np.ones(N, np.float32)
SIZE = X.nbytes
"""An array that goes in shared memory."""

LIBRARY = """\
import os

import numpy as np

from opdispatch import Library

lib = Library("mem", "DEF")
kept = []


def define(schema, kernel):
    lib.define(schema)
    lib.impl(schema.partition("(")[0], kernel, "CPU")


def add_(self, y):
    self += y
    return self


def double_all_(xs):
    for x in xs:
        x *= 2


def wait(x, folder, name):
    with open(f"{folder}/{name}.entered.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{name}.entered.new", f"{folder}/{name}.entered")
    with open(f"{folder}/{name}.door") as door:
        door.read()
    with open(f"{folder}/{name}.sum.new", "w") as file:
        file.write(str(float(x.sum())))
    os.rename(f"{folder}/{name}.sum.new", f"{folder}/{name}.sum")
    return float(x.sum())


def keep(x):
    kept.append(x[1:-1])


def fail(x):
    x += 1
    raise ValueError("on purpose")


define("add(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y)
define("copy(Tensor x) -> Tensor", lambda x: x.copy())
define("same(Tensor x) -> Tensor", lambda x: x)
define("add_(Tensor(a!) self, Tensor y) -> Tensor(a!)", add_)
define("add_out(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)",
       lambda x, y, *, out: np.add(x, y, out=out))
define("double_all_(Tensor(a!)[] xs) -> ()", double_all_)
define("writeable(Tensor x) -> bool", lambda x: bool(x.flags.writeable))
define("full(Tensor like, int n, float value) -> Tensor",
       lambda like, n, value: np.full(n, value, np.float32))
define("wait(Tensor x, str folder, str name) -> float", wait)
define("keep(Tensor x) -> ()", keep)
define("kept(Tensor x) -> float[]", lambda x: [float(k.sum()) for k in kept])
define("fail_(Tensor(a!) x) -> ()", fail)
define("half_sent(Tensor x) -> (Tensor, Tensor)", lambda x: (x + 1, np.zeros(2, np.longdouble)))
"""


def load(daemon: RunningDaemon, interpreters: int = 1) -> None:
    """Load the library into so many interpreters."""
    path = daemon.folder / "mem.py"
    path.write_text(LIBRARY)
    with daemon.connect() as session:
        session.load(path, interpreters=interpreters)


def interpreter_pid(session: oc.Session) -> int:
    """The process of the first interpreter."""
    return int(session.interpreters()[0].pid)


def shared_memory_of(pid: int) -> tuple[int, int]:
    """How many descriptors of regions for tensors a process has, and how many mappings."""
    descriptors = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            descriptors += REGION in os.readlink(link)
        except OSError:  # it was the one that lists the folder
            continue
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return descriptors, sum(REGION in line for line in maps)


def shared_bytes_of(pid: int) -> int:
    """The sizes of the regions for tensors that a process has mapped, those of them that differ."""
    sizes: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if REGION in line:
            addresses, _, _, _, inode, *_ = line.split()
            start, stop = (int(part, 16) for part in addresses.split("-"))
            sizes[inode] = max(sizes.get(inode, 0), stop - start)
    return sum(sizes.values())


class Door:
    """A kernel that waits in ``mem::wait``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        os.mkfifo(f"{self._path}.door")
        self.arguments = (str(folder), name)

    def wait_entered(self) -> int:
        """Until the kernel runs; the process in which it does so."""
        path = Path(f"{self._path}.entered")
        assert wait_for(path.exists)
        pid = int(path.read_text())
        path.unlink()  # another one may enter
        return pid

    def open(self) -> None:
        """Let the kernel go on, which must have entered."""
        Path(f"{self._path}.door").write_text("")

    def seen(self) -> float:
        """The sum that the kernel has seen after that."""
        path = Path(f"{self._path}.sum")
        assert wait_for(path.exists)
        return float(path.read_text())
