"""Releases of memory that is not used any more, on lanes without calls."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdispatch_client.lanes import idle_memory
from opdispatch_client.lanes.idle_memory import IdleMemoryThread
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_socket
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.shared_memory.memory_region import OwnedRegion
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.unit.lane_peer import LIMIT, Caller, Peer
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT


def test_tender_thread_starts_on_wake_and_ends_when_idle(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(idle_memory, "TEND_SECONDS", 0.01)
    answers, asked = [True, True, False], threading.Semaphore(0)

    def tend() -> bool:
        asked.release()
        return answers.pop(0)

    tender = IdleMemoryThread(tend)
    for _ in range(5):
        tender.wake()
    for _ in range(3):
        assert asked.acquire(timeout=LONGEST_WAIT)
    for thread in _tenders():
        thread.join(LONGEST_WAIT)
    assert not asked.acquire(blocking=False)
    answers[:] = [True] * 1000
    tender.wake()
    assert asked.acquire(timeout=LONGEST_WAIT)
    tender.stop()
    for thread in _tenders():
        thread.join(LONGEST_WAIT)
    tender.wake()
    assert _tenders() == []


def test_tender_thread_starts_on_a_later_wake_after_a_failure(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(idle_memory, "TEND_SECONDS", 0.01)
    threads, tended = ScarceThreads(monkeypatch, "memory-tender"), threading.Event()

    def tend() -> bool:
        tended.set()
        return False

    tender = IdleMemoryThread(tend)
    tender.wake()  # no call fails for that: it is to be tidied up later
    assert threads.tries == 1
    threads.are_lacking = False
    tender.wake()
    assert tended.wait(LONGEST_WAIT)


def test_tender_thread_stays_if_woken_while_it_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle_memory, "TEND_SECONDS", 0.01)
    asked = threading.Semaphore(0)
    wakes = [True, False]

    def tend() -> bool:
        if wakes.pop(0):
            tender.wake()  # as a call would that releases memory just now
        asked.release()
        return False

    tender = IdleMemoryThread(tend)
    tender.wake()
    for _ in range(2):
        assert asked.acquire(timeout=LONGEST_WAIT)
    for thread in _tenders():
        thread.join(LONGEST_WAIT)
    assert wakes == []


def _tenders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "memory-tender"]


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[BlockingLane, Peer]]:
    """A lane that shares memory, and its other side."""
    path = str(tmp_path / "lane")
    with lane_socket.listen(path) as listener:
        peer, arena = Peer(listener), TensorArena()
        accepting = threading.Thread(target=lambda: peer.accept(shares_memory=True))
        accepting.start()
        lane = BlockingLane.connect(path, LIMIT, lambda put: CallerLaneMemory(arena, put))
        accepting.join(LONGEST_WAIT)
        yield lane, peer
        lane.close()
        assert peer.connection is not None
        peer.connection.close()
        arena.close()


def pass_region(peer: Peer, number: int) -> None:
    payload = lane_pb2.LaneRegion(region=number).SerializeToString()
    region = OwnedRegion(1 << 16)
    assert peer.connection is not None
    frame = frame_header(FrameKind.REGION, len(payload)) + payload
    socket.send_fds(peer.connection, [frame], [region.descriptor])


def test_idle_lane_sends_and_reads_releases(ends: tuple[BlockingLane, Peer]):
    lane, peer = ends
    assert lane.memory is not None
    lane.tend()
    assert not lane.memory.is_in_use
    pass_region(peer, 5)
    lane.tend()
    assert len(lane.memory.peer) == 1
    assert lane.memory.is_in_use
    lane.memory._on_release(5, 4096)
    lane.tend()
    kind, payload = peer.read()
    assert kind is FrameKind.RELEASE
    (extent,) = lane_pb2.LaneExtents.FromString(bytes(payload)).extents
    assert (extent.region, extent.offset) == (5, 4096)
    peer.write(FrameKind.DROP, lane_pb2.LaneRegion(region=5).SerializeToString())
    lane.tend()
    assert not lane.memory.is_in_use


def test_a_lane_is_tended_while_a_call_waits(ends: tuple[BlockingLane, Peer]):
    lane, peer = ends
    assert lane.memory is not None
    caller = Caller(lane, "a::slow")
    call = peer.read_call()
    lane.memory._on_release(5, 0)
    lane.tend()
    assert peer.read()[0] is FrameKind.RELEASE
    peer.answer(call)
    caller.join(LONGEST_WAIT)
    assert caller.outcome == "a::slow"


def test_replies_behind_a_malformed_frame_are_ignored(ends: tuple[BlockingLane, Peer]):
    """A reply behind what makes no sense may name memory that is not there."""
    lane, peer = ends
    outcome: list[object] = []

    def call() -> None:
        try:
            lane.call(execution_pb2.CallRequest(operator="a::b"), 10, "the call")
        except (WireError, LaneClosedError) as error:
            outcome.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    request = peer.read_call()
    reply = execution_pb2.CallReply(id=request.id).SerializeToString()
    drop = lane_pb2.LaneRegion(region=77).SerializeToString()
    assert peer.connection is not None
    peer.connection.sendall(
        frame_header(FrameKind.DROP, len(drop))
        + drop
        + frame_header(FrameKind.REPLY, len(reply))
        + reply
    )
    caller.join(LONGEST_WAIT)
    assert len(outcome) == 1
    lane.tend()
    assert lane.is_closed


def test_descriptors_of_a_lane_are_closed_with_it(ends: tuple[BlockingLane, Peer]):
    lane, peer = ends
    before = len(os.listdir("/proc/self/fd"))
    region = OwnedRegion(1 << 16)
    assert peer.connection is not None
    for _ in range(3):
        socket.send_fds(peer.connection, [frame_header(FrameKind.REPLY, 0)], [region.descriptor])
    lane.tend()
    assert len(os.listdir("/proc/self/fd")) == before + 4
    lane.close()
    region.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_lane_that_is_closed_while_it_is_tended_keeps_no_descriptor(tmp_path: Path):
    path = str(tmp_path / "lane")
    with lane_socket.listen(path) as listener:
        peer, arena = Peer(listener), TensorArena()
        accepting = threading.Thread(target=lambda: peer.accept(shares_memory=True))
        accepting.start()
        lane = BlockingLane.connect(
            path,
            LIMIT,
            # Sends the region, which is read here.
            lambda put: CallerLaneMemory(arena, put, on_use=lambda: lane.close()),
        )
        accepting.join(LONGEST_WAIT)
        pass_region(peer, 5)
        lane.tend()
        assert lane._connection._socket.fileno() == -1
        assert peer.connection is not None
        peer.connection.close()
        arena.close()
