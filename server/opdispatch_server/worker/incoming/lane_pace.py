"""How long a lane takes to begin a call, and which kernels are slow beside that."""

from __future__ import annotations

from opdispatch_server.serving.reading_turn import PATIENCE

# A kernel is slow that takes so many times as long as the lane takes to begin a call.
_SLOW = 16
# After a call that was kept waiting by a slow kernel, so many begin in a thread of their own.
_COMPANY = 64
# Kernels that were thought to be quick keep no call waiting for longer than so many beginnings.
_STUCK = 256
# But never for longer than this, in seconds: one beginning in which another process had the core
# is no measure, and on a lane with few calls it would be the only one.
_LONGEST_PATIENCE = 0.1
_NEWEST_SHARE = 0.125
# What counts at most of a beginning that takes longer than usual, in usual ones: another process
# may have had the core.
_LONGEST = 4.0


class LanePace:
    """Belongs to the thread whose turn it is to read; others may look."""

    __slots__ = ("beginning", "company", "slow")

    def __init__(self) -> None:
        self.beginning = 0.0
        """The seconds that it takes to begin a call, on average."""
        self.slow = 0.0
        """Kernels that take more seconds would keep other calls waiting."""
        self.company = 0
        """In how many of the next calls a slow kernel is expected to keep others waiting."""

    def note_beginning(self, seconds: float) -> None:
        """Count the time that it took to begin a call."""
        usual = self.beginning or seconds
        self.beginning = usual + _NEWEST_SHARE * (min(seconds, _LONGEST * usual) - usual)
        self.slow = _SLOW * self.beginning

    def note_company(self) -> None:
        """Note that a call has come while a slow kernel ran in the thread that reads."""
        self.company = _COMPANY


def patience_on(beginning: float) -> float:
    """Return the seconds after which kernels keep no call of a lane waiting any more.

    ``beginning`` is how long it takes there to begin a call, in seconds.
    """
    return min(max(PATIENCE, _STUCK * beginning), _LONGEST_PATIENCE)
