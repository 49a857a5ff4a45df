"""The calling side of a lane that threads share, against a peer that the test plays."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opdispatch_wire import lane_messages, lane_socket
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.frames import FrameKind, FrameReader, frame_header
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2, lane_pb2

LIMIT = 1 << 16


class Peer:
    """The other side of one lane, one frame at a time."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._reader = FrameReader(LIMIT)
        self.connection: socket.socket | None = None

    def accept(self, limit: int = LIMIT) -> None:
        self._listener.setblocking(True)
        self.connection, _ = self._listener.accept()
        kind, _ = self.read()
        assert kind is FrameKind.HELLO
        self.write(FrameKind.WELCOME, lane_messages.welcome(limit))

    def read(self) -> tuple[FrameKind, bytes | bytearray]:
        assert self.connection is not None
        while (frame := self._reader.next_frame()) is None:
            count = self.connection.recv_into(self._reader.space())
            assert count
            self._reader.received(count)
        return frame

    def read_call(self) -> execution_pb2.CallRequest:
        kind, payload = self.read()
        assert kind is FrameKind.CALL
        return execution_pb2.CallRequest.FromString(bytes(payload))

    def write(self, kind: FrameKind, payload: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(frame_header(kind, len(payload)) + payload)

    def answer(self, call: execution_pb2.CallRequest) -> None:
        reply = execution_pb2.CallReply(id=call.id, interpreter=call.operator)
        self.write(FrameKind.REPLY, reply.SerializeToString())


class Caller(threading.Thread):
    """One call in a thread of its own."""

    def __init__(self, lane: BlockingLane, operator: str, timeout: float | None = 30.0) -> None:
        super().__init__()
        self.outcome: object = None
        self._call = lambda: lane.call(
            execution_pb2.CallRequest(operator=operator), timeout, "the call"
        )
        self.start()

    def run(self) -> None:
        try:
            self.outcome = self._call().interpreter
        except Exception as error:
            self.outcome = error


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
        return self._ends.get(timeout=10)

    def nothing_else_has_ended(self) -> bool:
        return self._ends.empty()


def attendants() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lane-attendant"}


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    listener = lane_socket.listen(str(tmp_path / "lane"))
    peer = Peer(listener)
    yield peer
    listener.close()
    if peer.connection is not None:
        peer.connection.close()


@pytest.fixture
def lane(peer: Peer, tmp_path: Path) -> Iterator[BlockingLane]:
    accepting = threading.Thread(target=peer.accept)
    accepting.start()
    lane = BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    accepting.join()
    yield lane
    lane.close()


def test_replies_reach_their_callers_in_whatever_order_they_come(lane: BlockingLane, peer: Peer):
    callers = [Caller(lane, f"a::{n}") for n in range(20)]
    calls = [peer.read_call() for _ in callers]
    for call in reversed(calls):
        peer.answer(call)
    for caller in callers:
        caller.join(10)
    assert [caller.outcome for caller in callers] == [f"a::{n}" for n in range(20)]


def test_another_thread_reads_on_when_the_one_that_reads_has_its_reply(
    lane: BlockingLane, peer: Peer
):
    first = Caller(lane, "a::first")
    one = peer.read_call()
    second = Caller(lane, "a::second")
    two = peer.read_call()
    peer.answer(one)
    first.join(10)
    peer.answer(two)
    second.join(10)
    assert (first.outcome, second.outcome) == ("a::first", "a::second")


def test_a_call_that_is_late_is_cancelled_and_others_go_on(lane: BlockingLane, peer: Peer):
    late = Caller(lane, "a::late", timeout=0.05)
    one = peer.read_call()
    other = Caller(lane, "a::other")
    two = peer.read_call()
    late.join(10)
    assert isinstance(late.outcome, TimeoutError)
    kind, payload = peer.read()
    assert (kind, lane_pb2.LaneCancel.FromString(bytes(payload)).id) == (FrameKind.CANCEL, one.id)
    peer.answer(one)  # nobody's any more
    peer.answer(two)
    other.join(10)
    assert other.outcome == "a::other"


def test_the_end_of_the_other_side_ends_every_call(lane: BlockingLane, peer: Peer):
    callers = [Caller(lane, f"a::{n}") for n in range(5)]
    for _ in callers:
        peer.read_call()
    assert peer.connection is not None
    peer.connection.close()
    for caller in callers:
        caller.join(10)
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
        caller.join(10)
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
        caller.join(10)
        outcomes.append(type(caller.outcome))
    assert sorted(t.__name__ for t in outcomes) == ["LaneClosedError", "WireError"]
    assert lane.is_closed


def test_a_request_over_the_limit_is_never_sent(peer: Peer, tmp_path: Path):
    accepting = threading.Thread(target=peer.accept, args=(100,))
    accepting.start()
    lane = BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    accepting.join()
    with pytest.raises(
        MessageTooLargeError, match=r"the call has 1\d\d bytes, and the limit is 100"
    ):
        lane.call(execution_pb2.CallRequest(operator="x" * 100), None, "the call")
    other = Caller(lane, "a::b")
    peer.answer(peer.read_call())
    other.join(10)
    assert other.outcome == "a::b"
    lane.close()


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
    interrupting.join()
    assert peer.read()[0] is FrameKind.CANCEL
    after = Caller(lane, "a::after")
    peer.answer(peer.read_call())
    after.join(10)
    assert after.outcome == "a::after"


def test_calls_that_have_begun_are_told_their_replies_in_whatever_order(
    lane: BlockingLane, peer: Peer
):
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
    before.join(10)
    after = Caller(lane, "a::after")  # now the attendant does
    waiting.append(peer.read_call())
    peer.answer(waiting.pop())
    after.join(10)
    peer.answer(second)
    assert begun.next_end() == ("a::second", "a::second")
    assert (before.outcome, after.outcome) == ("a::before", "a::after")


def test_the_thread_that_attends_to_calls_goes_when_there_are_none(lane: BlockingLane, peer: Peer):
    begun, others = Begun(lane), attendants()
    for _ in range(2):
        begun.begin("a::b")
        lane.flush()
        (attendant,) = attendants() - others
        peer.answer(peer.read_call())
        begun.next_end()
        attendant.join(10)
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
    peer.answer(late)  # nobody's any more
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
def test_the_end_of_a_lane_is_told_to_calls_that_have_begun(
    lane: BlockingLane, peer: Peer, waits_beside: bool
):
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
        beside.join(10)
        assert isinstance(beside.outcome, LaneClosedError)


def test_closing_is_told_to_calls_that_have_begun(lane: BlockingLane, peer: Peer):
    begun, others = Begun(lane), attendants()
    begun.begin("a::b")
    lane.flush()
    (attendant,) = attendants() - others
    lane.close()
    assert isinstance(begun.next_end()[1], LaneClosedError)
    attendant.join(10)
    assert not attendant.is_alive()


def test_garbage_is_what_calls_that_have_begun_are_told(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    begun.begin("a::b")
    lane.flush()
    peer.read_call()
    _garbage(peer)
    _, error = begun.next_end()
    assert isinstance(error, LaneClosedError)
    assert "header of a frame" in str(error)


def test_a_call_over_the_limit_never_begins(lane: BlockingLane, peer: Peer):
    begun = Begun(lane)
    with pytest.raises(MessageTooLargeError):
        begun.begin("x" * (LIMIT + 1))
    lane.close()
    assert begun.nothing_else_has_ended()


def test_a_peer_of_another_version_is_refused(peer: Peer, tmp_path: Path):
    def accept() -> None:
        peer._listener.setblocking(True)
        peer.connection, _ = peer._listener.accept()
        peer.read()
        peer.write(FrameKind.WELCOME, lane_pb2.LaneWelcome(protocol_version=9).SerializeToString())

    accepting = threading.Thread(target=accept)
    accepting.start()
    with pytest.raises(WireError, match="speaks protocol version 9"):
        BlockingLane.connect(str(tmp_path / "lane"), LIMIT)
    accepting.join()


def test_the_socket_is_for_its_user_alone(tmp_path: Path):
    path = tmp_path / "lane"
    listener = lane_socket.listen(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="in use"):
        lane_socket.listen(str(path))
    listener.close()
    lane_socket.listen(str(path)).close()  # what a process that was killed leaves is replaced
