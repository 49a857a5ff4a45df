"""The right of one of several threads to read a lane: see Note [Whoever reads a call runs it]."""

from __future__ import annotations

import threading
import time
from typing import Protocol

PATIENCE = 0.005
"""Seconds after which a kernel that was thought to be quick keeps nobody waiting any more."""

# The watch goes to sleep after so many looks without a busy lane.
_IDLE_LOOKS = 20

_CURRENT = threading.local()


class SharedLane(Protocol):
    """A lane whose threads read in turn; turns are counted."""

    was_busy: bool
    """Whether a kernel has begun since the watch last looked."""

    def hand_over(self, turn: int) -> None:
        """Gives the right to read to another thread, if it is still that turn."""

    def take_turn_if_stuck(self) -> bool:
        """Hands the turn over if its thread is busy for too long; whether it was busy."""


def note_turn(lane: SharedLane, turn: int) -> None:
    """This thread may read the lane now."""
    _CURRENT.turn = (lane, turn)


def hand_over_turn() -> None:
    """What a thread does before it waits for another process: others may read meanwhile."""
    turn: tuple[SharedLane, int] | None = getattr(_CURRENT, "turn", None)
    if turn is not None:
        lane, number = turn
        lane.hand_over(number)


class TurnWatch:
    """Takes the turn from threads that run a kernel for too long."""

    def __init__(self) -> None:
        self._lanes: set[SharedLane] = set()
        self._mutex = threading.Lock()  # protects _lanes
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="turn-watch", daemon=True)
        self._thread.start()

    def add(self, lane: SharedLane) -> None:
        """Watches a lane."""
        with self._mutex:
            self._lanes.add(lane)

    def remove(self, lane: SharedLane) -> None:
        """Watches it no more."""
        with self._mutex:
            self._lanes.discard(lane)

    def notice(self) -> None:
        """A lane is busy now."""
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Ends the thread."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.wait()
            looks = 0
            while looks < _IDLE_LOOKS and not self._is_stopped:
                time.sleep(PATIENCE)
                with self._mutex:
                    lanes = list(self._lanes)
                # No list comprehension: every lane is to be asked.
                busy = sum([lane.take_turn_if_stuck() for lane in lanes])
                looks = 0 if busy else looks + 1
            self._wake.clear()
            with self._mutex:
                lanes = list(self._lanes)
            if any(lane.was_busy for lane in lanes):
                self._wake.set()  # it became so between the last look and the clearing
