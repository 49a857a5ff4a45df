"""The calling side of a lane that threads share, against a peer that the test plays."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.calls import call_request, returns_of_reply
from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.unit.lane_peer import LIMIT, Caller, Peer
from tests.waits import LONGEST_WAIT, accept, join


def test_replies_reach_their_callers_in_whatever_order_they_come(lane: BlockingLane, peer: Peer):
    callers = [Caller(lane, f"a::{n}") for n in range(20)]
    calls = [peer.read_call() for _ in callers]
    for call in reversed(calls):
        peer.answer(call)
    for caller in callers:
        caller.join(LONGEST_WAIT)
    assert [caller.outcome for caller in callers] == [f"a::{n}" for n in range(20)]


def test_another_thread_reads_on_when_the_one_that_reads_has_its_reply(
    lane: BlockingLane, peer: Peer
):
    first = Caller(lane, "a::first")
    one = peer.read_call()
    second = Caller(lane, "a::second")
    two = peer.read_call()
    peer.answer(one)
    first.join(LONGEST_WAIT)
    peer.answer(two)
    second.join(LONGEST_WAIT)
    assert (first.outcome, second.outcome) == ("a::first", "a::second")


def test_a_call_that_is_late_is_cancelled_and_others_go_on(lane: BlockingLane, peer: Peer):
    late = Caller(lane, "a::late", timeout=0.05)
    one = peer.read_call()
    other = Caller(lane, "a::other")
    two = peer.read_call()
    late.join(LONGEST_WAIT)
    assert isinstance(late.outcome, TimeoutError)
    kind, payload = peer.read()
    assert (kind, lane_pb2.LaneCancel.FromString(bytes(payload)).id) == (FrameKind.CANCEL, one.id)
    peer.answer(one)  # of no call any more
    peer.answer(two)
    other.join(LONGEST_WAIT)
    assert other.outcome == "a::other"


def test_the_end_of_the_other_side_ends_every_call(lane: BlockingLane, peer: Peer):
    callers = [Caller(lane, f"a::{n}") for n in range(5)]
    for _ in callers:
        peer.read_call()
    assert peer.connection is not None
    peer.connection.close()
    for caller in callers:
        caller.join(LONGEST_WAIT)
        assert isinstance(caller.outcome, LaneClosedError)
    assert lane.is_closed
    with pytest.raises(LaneClosedError):
        lane.call(execution_pb2.CallRequest(operator="a::b"), None, "the call")


def test_closing_ends_the_calls_of_other_threads(lane: BlockingLane, peer: Peer):
    callers = [Caller(lane, f"a::{n}", timeout=None) for n in range(3)]
    for _ in callers:
        peer.read_call()
    lane.close()
    for caller in callers:
        caller.join(LONGEST_WAIT)
        assert isinstance(caller.outcome, LaneClosedError)


def _garbage(peer: Peer) -> None:
    assert peer.connection is not None
    peer.connection.sendall(b"\xff" * 64)


def _no_reply(peer: Peer) -> None:
    peer.write(FrameKind.REPLY, b"\xff\xff\xff")


def _call(peer: Peer) -> None:
    peer.write(FrameKind.CALL, b"")


@pytest.mark.parametrize("speak", [_garbage, _no_reply, _call])
def test_an_answer_that_makes_no_sense_ends_the_lane(
    lane: BlockingLane, peer: Peer, speak: Callable[[Peer], None]
):
    callers = [Caller(lane, "a::b"), Caller(lane, "a::c")]
    for _ in callers:
        peer.read_call()
    speak(peer)
    outcomes = []
    for caller in callers:
        caller.join(LONGEST_WAIT)
        outcomes.append(type(caller.outcome))
    assert sorted(t.__name__ for t in outcomes) == ["LaneClosedError", "WireError"]
    assert lane.is_closed


def test_a_request_over_the_limit_is_never_sent(peer: Peer, tmp_path: Path):
    accepting = threading.Thread(target=peer.accept, args=(100,))
    accepting.start()
    lane = BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    join(accepting)
    with pytest.raises(
        MessageTooLargeError, match=r"the call has 1\d\d bytes, and the limit is 100"
    ):
        lane.call(execution_pb2.CallRequest(operator="x" * 100), None, "the call")
    other = Caller(lane, "a::b")
    peer.answer(peer.read_call())
    other.join(LONGEST_WAIT)
    assert other.outcome == "a::b"
    lane.close()


def large_call(value: float) -> tuple[execution_pb2.CallRequest, CallerTensors]:
    tensors = CallerTensors(BESIDE_BYTES)
    return call_request("a::b", [np.full(CHUNK_BYTES, value)], {}, memory=tensors), tensors


def answer_with(peer: Peer, call: execution_pb2.CallRequest) -> None:
    reply = execution_pb2.CallReply(id=call.id)
    reply.returns.add().tensor.CopyFrom(call.args[0].tensor)
    peer.write(FrameKind.REPLY, reply.SerializeToString())


def test_large_tensors_are_inline_for_the_peer_and_nowhere_else(lane: BlockingLane, peer: Peer):
    answering = threading.Thread(target=lambda: answer_with(peer, peer.read_call()))
    answering.start()
    request, tensors = large_call(7.0)
    reply = lane.call(request, 20.0, "the call", tensors=tensors)
    answering.join(LONGEST_WAIT)
    assert request.ByteSize() < 100
    assert reply.ByteSize() < 100
    (result,) = returns_of_reply(reply, [], {}, tensors)
    assert (result == 7.0).all()
    assert result.ctypes.data % 16 == 0
    result[0] = 1.0  # the caller's own


def test_of_large_calls_that_were_given_up_nothing_is_kept(lane: BlockingLane, peer: Peer):
    answers: SimpleQueue[object] = SimpleQueue()
    calls, gone = [], []
    # One is cancelled, one is late, and one is waited for: while it is, a thread reads the
    # replies that are not wanted any more.
    for timeout, gives_up in ((20.0, True), (0.01, False), (20.0, False)):
        request, tensors = large_call(1.0)
        number = lane.begin(request, timeout, "the call", answers.put, None, tensors)
        sending = threading.Thread(target=lane.flush)
        sending.start()
        calls.append(peer.read_call())
        sending.join(LONGEST_WAIT)
        if gives_up:
            lane.cancel(number)
            assert peer.read()[0] is FrameKind.CANCEL
        elif timeout < 1.0:
            assert isinstance(answers.get(timeout=LONGEST_WAIT), TimeoutError)
        gone.append(weakref.ref(tensors))
    for call in calls:
        answer_with(peer, call)
    reply = answers.get(timeout=LONGEST_WAIT)
    assert isinstance(reply, execution_pb2.CallReply)
    assert reply.id == calls[-1].id
    del tensors, request
    gc.collect()
    assert [each() for each in gone] == [None] * 3


def _main_thread_sleeps() -> bool:
    """Whether it waits in the system, as it does for a reply."""
    status = Path(f"/proc/self/task/{os.getpid()}/stat").read_text()
    return status.rpartition(")")[2].split()[0] == "S"


def test_ctrl_c_cancels_the_call_and_the_lane_goes_on(lane: BlockingLane, peer: Peer):
    def interrupt() -> None:
        peer.read_call()
        while not _main_thread_sleeps():
            pass
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        lane.call(execution_pb2.CallRequest(operator="a::b"), None, "the call")
    join(interrupting)
    assert peer.read()[0] is FrameKind.CANCEL
    after = Caller(lane, "a::after")
    peer.answer(peer.read_call())
    after.join(LONGEST_WAIT)
    assert after.outcome == "a::after"


def test_error_while_a_reply_is_read_ends_the_wait_of_its_caller(lane: BlockingLane, peer: Peer):
    def fail(payload: object, place: int) -> None:
        raise MemoryError

    def call() -> None:
        request = execution_pb2.CallRequest(operator="a::planned")
        try:
            lane.exchange(
                lambda number: bytes((8, number)) + request.SerializeToString(), None, None, fail
            )
        except LaneClosedError as error:
            ended.put(error)

    ended: SimpleQueue[Exception] = SimpleQueue()
    reader = Caller(lane, "a::reads")
    peer.read_call()
    planned = threading.Thread(target=call)
    planned.start()
    peer.answer(peer.read_call())
    reader.join(LONGEST_WAIT)
    assert isinstance(reader.outcome, MemoryError)
    assert ended.get(timeout=LONGEST_WAIT)
    join(planned)


def test_unwanted_reply_does_not_keep_the_next_call_from_being_written(
    lane: BlockingLane, peer: Peer
):
    """The other side reads on when its reply was taken; some thread has to take it."""

    def answer_late() -> None:
        late = peer.read_call()
        assert peer.read()[0] is FrameKind.CANCEL
        late.operator = "x" * 4_000_000
        peer.answer(late)
        peer.answer(peer.read_call())

    answering = threading.Thread(target=answer_late)
    answering.start()
    late = Caller(lane, "a::late", timeout=0.05)
    late.join(LONGEST_WAIT)
    assert isinstance(late.outcome, TimeoutError)
    large = Caller(lane, "y" * 4_000_000)
    large.join(LONGEST_WAIT)
    assert large.outcome == "y" * 4_000_000
    answering.join(LONGEST_WAIT)


def test_a_deadline_holds_while_the_other_side_takes_nothing(lane: BlockingLane, peer: Peer):
    """Send the rest as it was: the arguments are the caller's again."""
    argument = np.full(CHUNK_BYTES, 7.0)
    tensors = CallerTensors(BESIDE_BYTES)
    request = call_request("a::b", [argument], {}, memory=tensors)
    with pytest.raises(TimeoutError):
        lane.call(request, 0.05, "the call", tensors=tensors)
    argument[:] = 8.0
    late = peer.read_call()
    assert (np.frombuffer(late.args[0].tensor.data) == 7.0).all()
    assert peer.read()[0] is FrameKind.CANCEL
    after = Caller(lane, "a::after")
    peer.answer(peer.read_call())
    after.join(LONGEST_WAIT)
    assert after.outcome == "a::after"


def test_cancel_does_not_wait_for_other_sends(lane: BlockingLane, peer: Peer):
    answers: SimpleQueue[object] = SimpleQueue()
    small = lane.begin(execution_pb2.CallRequest(operator="a::b"), 60.0, "the call", answers.put)
    lane.flush()
    assert peer.read_call().operator == "a::b"
    request, tensors = large_call(1.0)
    lane.begin(request, 60.0, "the call", answers.put, None, tensors)  # not flushed
    lane.cancel(small)
    assert peer.read_call().id == request.id
    assert peer.read()[0] is FrameKind.CANCEL


def test_sender_waits_if_the_peer_does_not_read(lane: BlockingLane, peer: Peer):
    """Or what is to be sent would grow without an end."""
    answers: SimpleQueue[object] = SimpleQueue()

    def begin(count: int) -> None:
        for _ in range(count):
            request = execution_pb2.CallRequest(operator="x" * 3_000_000)
            lane.begin(request, 60.0, "the call", answers.put)
            lane.flush()

    beginning = threading.Thread(target=begin, args=(6,))
    beginning.start()
    beginning.join(0.2)
    assert beginning.is_alive()
    for _ in range(6):
        peer.answer(peer.read_call())
    beginning.join(LONGEST_WAIT)
    assert all(
        isinstance(answers.get(timeout=LONGEST_WAIT), execution_pb2.CallReply) for _ in range(6)
    )


def test_a_peer_of_another_version_is_refused(peer: Peer, tmp_path: Path):
    def serve() -> None:
        peer.connection = accept(peer._listener)
        peer.read()
        peer.write(FrameKind.WELCOME, lane_pb2.LaneWelcome(protocol_version=9).SerializeToString())

    accepting = threading.Thread(target=serve)
    accepting.start()
    with pytest.raises(WireError, match="speaks protocol version 9"):
        BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    join(accepting)


def test_the_socket_is_for_its_user_alone(tmp_path: Path):
    path = tmp_path / "lane"
    listener = lane_socket.listen(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="in use"):
        lane_socket.listen(str(path))
    listener.close()
    lane_socket.listen(str(path)).close()  # what a process that was killed leaves is replaced
