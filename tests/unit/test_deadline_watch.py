"""The thread that sleeps until a deadline."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from opdispatch_wire.lanes.deadline_watch import DeadlineWatch
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT


class Deadlines:
    """Deadlines that are noted when they have come."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._left: list[float] = []
        self.come: queue.Queue[float] = queue.Queue()
        self.watch = DeadlineWatch(self._expire)

    def add(self, seconds: float) -> float:
        deadline = time.monotonic() + seconds
        with self._mutex:
            self._left.append(deadline)
        self.watch.look_at(deadline)
        return deadline

    def _expire(self, now: float) -> float | None:
        with self._mutex:
            for deadline in sorted(at for at in self._left if at <= now):
                self._left.remove(deadline)
                self.come.put(deadline)
            return min(self._left, default=None)


def watching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "deadline-watch"]


def test_deadlines_come_in_their_order_and_not_too_early():
    deadlines = Deadlines()
    added = [deadlines.add(seconds) for seconds in (0.2, 0.1, 0.15, 0.02, 0.2)]
    for deadline in sorted(added):
        assert deadlines.come.get(timeout=LONGEST_WAIT) == deadline
        assert time.monotonic() >= deadline


def test_the_thread_is_there_only_while_a_deadline_is():
    deadlines = Deadlines()
    deadlines.add(0.05)
    (thread,) = watching()
    thread.join(LONGEST_WAIT)
    assert not thread.is_alive()
    deadlines.add(100)
    (thread,) = watching()
    deadlines.add(50)
    assert watching() == [thread]
    deadlines.watch.stop()
    thread.join(LONGEST_WAIT)
    assert not thread.is_alive()
    assert deadlines.come.qsize() == 1


def test_deadlines_come_again_when_there_are_threads_again(monkeypatch: pytest.MonkeyPatch):
    threads, deadlines = ScarceThreads(monkeypatch, "deadline-watch"), Deadlines()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            deadlines.add(0.01)
    threads.are_lacking = False
    # Later than those that were not looked at, which come as well, when it looks.
    added = deadlines.add(0.02)
    come = [deadlines.come.get(timeout=LONGEST_WAIT) for _ in range(3)]
    assert come[-1] == added
