"""Calls over a blocking lane that no thread waits for, against a peer that the test plays."""

from __future__ import annotations

import queue
import select
import threading

import pytest

from opdispatch_wire.errors import MessageTooLargeError, RefusedError
from opdispatch_wire.lanes import shared_reading
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.unit.lane_peer import LIMIT, Caller, Peer
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT


class Begun:
    """Calls that have begun, and how they end."""

    def __init__(self, lane: BlockingLane) -> None:
        self._lane = lane
        self._ends: queue.Queue[tuple[str, object]] = queue.Queue()

    def begin(self, operator: str, timeout: float | None = 30.0) -> int:
        def on_done(result: execution_pb2.CallReply | Exception) -> None:
            is_error = isinstance(result, Exception)
            self._ends.put((operator, result if is_error else result.interpreter))

        request = execution_pb2.CallRequest(operator=operator)
        return self._lane.begin(request, timeout, "the call", on_done)

    def next_end(self) -> tuple[str, object]:
        return self._ends.get(timeout=LONGEST_WAIT)

    def nothing_else_has_ended(self) -> bool:
        return self._ends.empty()


def attendants() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lane-attendant"}


def test_begun_calls_get_their_replies_in_any_order(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    for n in range(20):
        begun.begin(f"a::{n}")
    lane.flush()
    calls = [peer.read_call() for _ in range(20)]
    for call in reversed(calls):
        peer.answer(call)
    assert [begun.next_end() for _ in calls] == [(f"a::{n}", f"a::{n}") for n in range(19, -1, -1)]


def test_calls_that_have_begun_go_with_the_next_flush(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    begun.begin("a::one")
    begun.begin("a::two")
    assert not select.select([peer.connection], [], [], 0.05)[0]
    lane.flush()
    assert [peer.read_call().operator for _ in range(2)] == ["a::one", "a::two"]


def test_threads_that_wait_and_calls_that_have_begun_share_the_reading(
    lane: BlockingLane, peer: Peer
):
    begun = Begun(lane)
    before = Caller(lane, "a::before")  # it reads
    waiting = [peer.read_call()]
    begun.begin("a::first")
    begun.begin("a::second")
    lane.flush()
    first, second = peer.read_call(), peer.read_call()
    peer.answer(first)
    assert begun.next_end() == ("a::first", "a::first")
    peer.answer(waiting.pop())
    before.join(LONGEST_WAIT)
    after = Caller(lane, "a::after")  # now the attendant does
    waiting.append(peer.read_call())
    peer.answer(waiting.pop())
    after.join(LONGEST_WAIT)
    peer.answer(second)
    assert begun.next_end() == ("a::second", "a::second")
    assert (before.outcome, after.outcome) == ("a::before", "a::after")


def test_the_thread_that_attends_to_calls_goes_when_there_are_none(
    lane: BlockingLane, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(shared_reading, "_LINGER", 0.1)
    begun, others = Begun(lane), attendants()
    for _ in range(2):
        begun.begin("a::b")
        lane.flush()
        (attendant,) = attendants() - others
        peer.answer(peer.read_call())
        begun.next_end()
        attendant.join(LONGEST_WAIT)
        assert not attendant.is_alive()


def test_a_call_that_has_begun_is_late_when_its_time_has_come(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    begun.begin("a::late", timeout=0.05)
    begun.begin("a::never", timeout=None)
    begun.begin("a::later", timeout=0.1)
    lane.flush()
    late, never, _ = (peer.read_call() for _ in range(3))
    for operator in ("a::late", "a::later"):
        name, error = begun.next_end()
        assert name == operator
        assert isinstance(error, TimeoutError)
    peer.answer(late)  # of no call any more
    peer.answer(never)
    assert begun.next_end() == ("a::never", "a::never")
    assert begun.nothing_else_has_ended()


def test_a_call_that_has_begun_can_be_cancelled(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    number = begun.begin("a::b")
    lane.flush()
    call = peer.read_call()
    lane.cancel(number)
    lane.cancel(number)
    kind, payload = peer.read()
    assert (kind, lane_pb2.LaneCancel.FromString(bytes(payload)).id) == (FrameKind.CANCEL, call.id)
    peer.answer(call)
    begun.begin("a::after")
    lane.flush()
    peer.answer(peer.read_call())
    assert begun.next_end() == ("a::after", "a::after")
    assert begun.nothing_else_has_ended()


@pytest.mark.parametrize("waits_beside", [False, True])
def test_begun_calls_fail_when_the_lane_ends(lane: BlockingLane, peer: Peer, waits_beside: bool):
    beside = Caller(lane, "a::beside") if waits_beside else None
    if beside is not None:
        peer.read_call()
    begun = Begun(lane)
    for n in range(3):
        begun.begin(f"a::{n}")
    lane.flush()
    for _ in range(3):
        peer.read_call()
    assert peer.connection is not None
    peer.connection.close()
    for n in range(3):
        operator, error = begun.next_end()
        assert operator == f"a::{n}"
        assert isinstance(error, LaneClosedError)
    with pytest.raises(LaneClosedError):
        begun.begin("a::after")
    if beside is not None:
        beside.join(LONGEST_WAIT)
        assert isinstance(beside.outcome, LaneClosedError)


def test_close_fails_begun_calls(lane: BlockingLane, peer: Peer):
    begun, others = Begun(lane), attendants()
    begun.begin("a::b")
    lane.flush()
    (attendant,) = attendants() - others
    lane.close()
    assert isinstance(begun.next_end()[1], LaneClosedError)
    attendant.join(LONGEST_WAIT)
    assert not attendant.is_alive()


def test_begun_calls_fail_on_garbage(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    begun.begin("a::b")
    lane.flush()
    peer.read_call()
    assert peer.connection is not None
    peer.connection.sendall(b"\xff" * 64)
    _, error = begun.next_end()
    assert isinstance(error, LaneClosedError)
    assert "header of a frame" in str(error)


def test_a_call_over_the_limit_never_begins(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    with pytest.raises(MessageTooLargeError):
        begun.begin("x" * (LIMIT + 1))
    lane.close()
    assert begun.nothing_else_has_ended()


@pytest.mark.parametrize("name", ["lane-attendant", "deadline-watch"])
def test_call_whose_end_could_not_be_watched_never_begins(
    lane: BlockingLane, peer: Peer, monkeypatch: pytest.MonkeyPatch, name: str
):
    begun, threads = Begun(lane), ScarceThreads(monkeypatch, name)
    for _ in range(2):
        with pytest.raises(
            RefusedError, match=r"cannot start a thread .*: can't start new thread"
        ) as why:
            begun.begin("a::refused")
        assert why.value.facts["started"] == "no"
        lane.flush()
    assert lane.calls_in_flight == 0
    threads.are_lacking = False
    begun.begin("a::late", timeout=0.05)
    begun.begin("a::b")
    lane.flush()
    assert peer.read_call().operator == "a::late"
    operator, error = begun.next_end()
    assert operator == "a::late"
    assert isinstance(error, TimeoutError)
    peer.answer(peer.read_call())
    assert begun.next_end() == ("a::b", "a::b")
    assert begun.nothing_else_has_ended()


def test_planned_call_that_never_begins_holds_no_memory(
    lane: BlockingLane, monkeypatch: pytest.MonkeyPatch
):
    threads, held = ScarceThreads(monkeypatch, "lane-attendant"), []
    memory = CallerLaneMemory(TensorArena(), lambda *frame: None)
    monkeypatch.setattr(lane._tensors, "memory", memory)

    def encode(number: int) -> bytes:
        held.append(number)
        memory.hold(number, memory.new_call())
        return b"a request"

    with pytest.raises(RefusedError):
        lane.begin_plain(encode, 30.0, lambda result: None, lambda payload, place: None)
    assert threads.tries == 1
    assert [memory.replied(number) for number in held] == [None]


def test_waiting_for_a_reply_needs_no_thread(
    lane: BlockingLane, peer: Peer, monkeypatch: pytest.MonkeyPatch
):
    ScarceThreads(monkeypatch, "lane-attendant")
    with pytest.raises(RefusedError):
        Begun(lane).begin("a::refused")
    caller = Caller(lane, "a::b")
    peer.answer(peer.read_call())
    caller.join(LONGEST_WAIT)
    assert caller.outcome == "a::b"
