"""Calls that no thread waits for, and the callbacks at their end."""

from __future__ import annotations

import queue

import pytest

from opdispatch_wire.errors import RefusedError
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import PendingCalls
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT


def test_call_whose_deadline_could_not_be_watched_is_not_added(monkeypatch: pytest.MonkeyPatch):
    threads, pending = ScarceThreads(monkeypatch, "deadline-watch"), PendingCalls()
    told: queue.Queue[object] = queue.Queue()
    for _ in range(2):
        with pytest.raises(RefusedError, match="can't start new thread"):
            pending.add(1, told.put, 0.01)
    assert pending.calls == {}
    pending.add(2, told.put, None)  # it has none
    threads.are_lacking = False
    pending.add(3, told.put, 0.02)
    assert isinstance(told.get(timeout=LONGEST_WAIT), TimeoutError)
    assert told.empty()
    assert list(pending.calls) == [2]


def test_call_ends_once_when_the_lane_ends_as_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
):
    pending, told = PendingCalls(), list[object]()

    def end(_: object) -> None:
        pending.end(LaneClosedError("the lane is closed"))
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", end)
    pending.add(1, told.append, 10)
    assert [type(end) for end in told] == [LaneClosedError]
