"""Detect that other processes keep a process of this machine from running."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class _Times(NamedTuple):
    """The counters of a thread, in nanoseconds (``proc_pid_schedstat(5)``)."""

    run: int
    waited: int
    is_runnable: bool


class StarvationWatch:
    """Watches the main thread of a process, which sends an interpreter's heartbeats.

    A thread that hangs is asleep or running. One that is runnable but not running is not at fault.
    """

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self._folder = proc / str(pid)
        self._last: _Times | None = None

    def was_starved(self, seconds: float) -> bool:
        """Return whether it mostly waited for a core in the ``seconds`` since the previous call."""
        before, self._last = self._last, self._read()
        now = self._last
        if before is None or now is None:
            return False
        if now.waited - before.waited > seconds * 1e9 / 2:
            return True
        # A wait is counted when it ends.
        return now.is_runnable and now.run == before.run

    def _read(self) -> _Times | None:
        """Return the process's times; None if it is gone, or the system does not count them."""
        try:
            run, waited, *_ = (self._folder / "schedstat").read_text().split()
            # The name before the numbers, in parentheses, may contain any character.
            state = (self._folder / "stat").read_text().rpartition(")")[2].split()[0]
            return _Times(int(run), int(waited), state == "R")
        except (OSError, ValueError, IndexError):
            return None
