"""Measure how long a lane takes to begin a call, and so which kernels are slow in comparison."""

from __future__ import annotations

from opdispatch_server.serving.reading_turn import PATIENCE

# A kernel is slow if it takes so many times as long as the lane takes to begin a call.
_SLOW = 16
# After a call has waited for a slow kernel, the turn is handed over before so many slow kernels.
_COMPANY = 64
# Kernels expected to be quick keep other calls waiting for at most as long as so many beginnings,
_STUCK = 256
# but never for more than this, in seconds. On a lane with few calls, the only beginning measured
# may have been interrupted by another process.
_LONGEST_PATIENCE = 0.1
_NEWEST_SHARE = 0.125
# An outlier counts as at most so many times the average: another process may have had the core.
_LONGEST = 4.0


class LanePace:
    """Averages of one lane. Changed only by the thread that has the turn; any thread may read."""

    __slots__ = ("beginning", "company", "slow")

    def __init__(self) -> None:
        self.beginning = 0.0
        """Average time to begin a call, in seconds."""
        self.slow = 0.0
        """Kernels that take longer than this, in seconds, count as slow."""
        self.company = 0
        """Before so many more slow kernels, other calls are expected to wait for them."""

    def note_beginning(self, seconds: float) -> None:
        """Add the time that it took to begin a call to the average."""
        usual = self.beginning or seconds
        self.beginning = usual + _NEWEST_SHARE * (min(seconds, _LONGEST * usual) - usual)
        self.slow = _SLOW * self.beginning

    def note_company(self) -> None:
        """Note that a call has arrived while a slow kernel ran in the thread that reads."""
        self.company = _COMPANY


def patience_on(beginning: float) -> float:
    """Return after how many seconds of running kernels a lane hands its turn over.

    ``beginning`` is the lane's average time to begin a call, in seconds.
    """
    return min(max(PATIENCE, _STUCK * beginning), _LONGEST_PATIENCE)
