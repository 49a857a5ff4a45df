"""Keep slow kernels from blocking a lane's other calls.

See Note [The thread that reads a call runs it].
"""

from __future__ import annotations

import threading
import time

from opdispatch_server.serving.reading_turn import PATIENCE, ReadingTurn

# The watch goes to sleep after so many checks without a stuck lane.
_IDLE_LOOKS = 20


class TurnWatch:
    """A thread that takes the turn away from threads that run kernels for too long. Thread-safe."""

    def __init__(self) -> None:
        self._turns: set[ReadingTurn] = set()
        self._mutex = threading.Lock()  # protects _turns
        self._wake = threading.Event()
        self.is_awake = False
        """Whether the event is set, or about to be; faster to read than the event."""
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="turn-watch", daemon=True)
        self._thread.start()

    def add(self, turn: ReadingTurn) -> None:
        """Watch a lane's turn."""
        with self._mutex:
            self._turns.add(turn)

    def remove(self, turn: ReadingTurn) -> None:
        """Stop watching a lane's turn. Idempotent."""
        with self._mutex:
            self._turns.discard(turn)

    def notice(self) -> None:
        """Wake the watch, because a lane is busy now."""
        if not self.is_awake:
            self.is_awake = True
            self._wake.set()

    def stop(self) -> None:
        """End the thread. Does not wait for it."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.wait()
            looks = 0
            while looks < _IDLE_LOOKS and not self._is_stopped:
                time.sleep(PATIENCE)
                looks += 1
                for turn in self._watched():
                    if turn.hand_over_if_stuck():
                        looks = 0
            self._wake.clear()
            self.is_awake = False
            if any(turn.was_busy for turn in self._watched()):
                self._wake.set()  # a lane got busy between the last check and the clearing

    def _watched(self) -> list[ReadingTurn]:
        with self._mutex:
            return list(self._turns)
