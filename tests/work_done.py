"""How the work that a function does grows with its input, whatever else the machine is doing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_FACTOR = 16
# Linear work grows by the factor, quadratic work by its square.
_GROWTH_ALLOWED = _FACTOR * 4
# Below this, the clock of a thread is too coarse to tell one from the other.
_NEGLIGIBLE = 0.02


def measure_work(run: Callable[[], object]) -> float:
    """Return the CPU time of this thread that `run` takes, in seconds; at best of three."""

    def once() -> float:
        started = time.thread_time()
        run()
        return time.thread_time() - started

    return min(once() for _ in range(3))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_linear_work(run: Callable[[T], object], make: Callable[[int], T], size: int) -> None:
    """Assert that the work of `run(make(size))` grows no faster than the input does.

    `make` is given a sixteenth of `size`, too.
    """
    whole = make(size)
    needed = measure_work(lambda: run(whole))
    if needed <= _NEGLIGIBLE:
        return
    part = make(size // _FACTOR)
    allowed = _GROWTH_ALLOWED * max(measure_work(lambda: run(part)), _NEGLIGIBLE / _FACTOR)
    assert needed <= allowed, f"{needed:.2f} s of CPU time for {size}, allowed {allowed:.2f} s"
