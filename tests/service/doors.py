"""Kernels that a test holds: each says that it is inside, and waits to be let out.

Both ways go through a FIFO, so that no side has to look again and again.
"""

from __future__ import annotations

import os
import select
from pathlib import Path

SECONDS = 20.0


def door_library(namespace: str, *, max_concurrency: int | None = None) -> str:
    """A library of kernels that wait; without ``max_concurrency``, it says nothing about that."""
    setting = f"max_concurrency = {max_concurrency}" if max_concurrency is not None else ""
    return f"""\
import os
from opdispatch import Library

{setting}
lib = Library({namespace!r}, "DEF")
lib.define("enter(Tensor x, str folder, str label) -> str")
lib.define("enter_(Tensor(a!) self, str folder, str label) -> Tensor(a!)")


def wait(folder, label):
    # Neither waits for the test to have it open, too: that may have ended, and this call lives on.
    outside = os.open(os.path.join(folder, "outside"), os.O_RDONLY | os.O_NONBLOCK)
    try:
        inside = os.open(os.path.join(folder, "inside"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(inside, label.encode() + b"\\n")
        os.close(inside)
        os.set_blocking(outside, True)
        os.read(outside, 1)
    finally:
        os.close(outside)


def enter(x, folder, label):
    wait(folder, label)
    return label


def enter_(self, folder, label):
    wait(folder, label)
    self += 1
    return self


lib.impl("enter", enter, "CPU")
lib.impl("enter_", enter_, "CPU")
"""


class Doors:
    """One pair of FIFOs."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        for name in ("inside", "outside"):
            os.mkfifo(folder / name)
        # For both ways, so that neither side waits for the other to open it.
        self._inside = os.open(folder / "inside", os.O_RDWR | os.O_NONBLOCK)
        self._outside = os.open(folder / "outside", os.O_RDWR | os.O_NONBLOCK)
        self._rest = ""

    def next_inside(self, seconds: float = SECONDS) -> str:
        """The label of the next kernel to say that it is inside; it must do so in time."""
        while "\n" not in self._rest:
            ready, _, _ = select.select([self._inside], [], [], seconds)
            assert ready, "no kernel came in"
            self._rest += os.read(self._inside, 4096).decode()
        label, _, self._rest = self._rest.partition("\n")
        return label

    def no_other_is_inside(self) -> bool:
        """Whether no kernel has said anything that was not read."""
        return not self._rest and not select.select([self._inside], [], [], 0)[0]

    def let_out(self, count: int = 1) -> None:
        """Let as many kernels out, those that are inside and those that come."""
        os.write(self._outside, b"x" * count)

    def close(self) -> None:
        """Close this side."""
        os.close(self._inside)
        os.close(self._outside)
