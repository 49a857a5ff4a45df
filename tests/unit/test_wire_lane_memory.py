"""Both ends of a lane that shares memory, which talk by frames in lists."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opdispatch.schema.parser import parse_schema
from opdispatch_wire.calls import call_request, decode_arguments, reply_of_returns, result_of_reply
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.lanes.descriptors import PassedDescriptor
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.lane_memory import CalleeLaneMemory, CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.peer_memory import is_without_room
from opdispatch_wire.shared_memory.tensor_arena import TensorArena
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.shared_memory_lane import own_mappings

N = 50_000
SAME = parse_schema("t::same(Tensor x) -> Tensor")
X = np.ones(N)

Frames = list[tuple[FrameKind, bytes, PassedDescriptor | None]]


class Ends:
    """A caller and a callee."""

    def __init__(self) -> None:
        self.from_caller: Frames = []
        self.from_callee: Frames = []
        self.no_room: list[str] = []
        self.arena = TensorArena(on_drop=self._drop)
        self.budget = MemoryBudget(1 << 26)
        self.caller = CallerLaneMemory(
            self.arena, lambda *frame: self.from_caller.append(frame), self.no_room.append
        )
        self.callee = CalleeLaneMemory(lambda *frame: self.from_callee.append(frame), self.budget)
        self.numbers = iter(range(1, 1000))

    def _drop(self, region: int) -> None:
        self.caller.drop(region)

    def deliver(self) -> list[FrameKind]:
        """Both ends take what the other one has said."""
        kinds = []
        for frames, end in ((self.from_caller, self.callee), (self.from_callee, self.caller)):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                while frames:
                    kind, payload, descriptor = frames.pop(0)
                    if descriptor is not None:
                        ours.sendmsg([b"x"], descriptor.ancillary)
                        end.descriptors.receive(theirs, memoryview(bytearray(1)))
                    kinds.append(kind)
                    end.take(kind, payload)
        return kinds

    def send(self, x: Any) -> tuple[execution_pb2.CallRequest, Any]:
        memory = self.caller.new_call()
        request = call_request("t::same", [x], {}, memory=memory, request_id=next(self.numbers))
        self.caller.begin(request, memory)
        return request, memory

    def serve(self, request: execution_pb2.CallRequest) -> execution_pb2.CallReply:
        memory = self.callee.new_call()
        args, _ = decode_arguments(request, SAME, memory)
        reply = reply_of_returns(request, SAME, args, args, memory=memory)
        del args
        self.callee.end_call(reply, memory)
        self.callee.hold(memory.placed)
        return reply

    def call(self, x: Any) -> Any:
        request, memory = self.send(x)
        self.deliver()
        reply = self.serve(request)
        self.deliver()
        self.caller.replied(request.id)
        try:
            return result_of_reply(reply, [x], {}, memory)
        finally:
            memory.finish(reply)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.caller.end()
    ends.callee.close()
    ends.arena.close()
    ends.from_caller.clear()
    ends.from_callee.clear()
    gc.collect()
    assert ends.budget.left == ends.budget.limit
    assert own_mappings()["descriptors"] == 0


def test_regions_are_passed_once_and_results_released_with_the_next_call(ends: Ends):
    result = ends.call(X)
    np.testing.assert_array_equal(result, X)
    request, memory = ends.send(X * 2)
    assert ends.deliver() == [], "both regions are known, and the result is still looked at"
    del result
    gc.collect()
    assert ends.from_caller == []
    ends.caller.replied(request.id)
    memory.release()
    np.testing.assert_array_equal(ends.call(X * 3), X * 3)
    assert ends.caller.tell_releases()
    assert ends.deliver() == [FrameKind.RELEASE]
    assert len(ends.callee._results) == 0


def test_dropped_region_is_reported_to_the_peer(ends: Ends):
    ends.call(X)
    ends.caller.tell_releases()
    ends.deliver()
    ends.arena.trim()
    ends.callee.trim(0)
    assert ends.deliver() == [FrameKind.DROP, FrameKind.DROP]
    assert not ends.caller.is_in_use
    np.testing.assert_array_equal(ends.call(X), X)


def test_memory_of_a_call_is_not_reused_before_its_reply(ends: Ends):
    request, memory = ends.send(X)
    del memory  # its caller has given up
    gc.collect()
    place = request.args[0].tensor.memory.offset
    other, held = ends.send(X)
    assert other.args[0].tensor.memory.offset != place
    assert ends.caller.replied(request.id) is not None
    gc.collect()
    again, held_too = ends.send(X)
    assert again.args[0].tensor.memory.offset == place
    for each in (held, held_too):
        each.release()


def test_unread_reply_releases_its_results(ends: Ends):
    request, memory = ends.send(X)
    ends.deliver()
    reply = ends.serve(request)
    ends.deliver()
    assert len(ends.callee._results) == 1
    del memory
    ends.caller.discard(reply, ends.caller.replied(request.id))
    ends.caller.tell_releases()
    ends.deliver()
    assert len(ends.callee._results) == 0


def test_the_end_of_the_lane_abandons_what_is_under_way(ends: Ends):
    request, memory = ends.send(X)
    region = request.args[0].tensor.memory.region
    ends.caller.end()
    assert region not in ends.arena.regions
    memory.placed.move_inline(request)
    assert request.args[0].tensor.data == X.tobytes()
    assert not request.args[0].tensor.HasField("memory")
    memory.release()
    late = ends.caller.new_call()
    request = call_request("t::same", [X], {}, memory=late, request_id=9)
    with pytest.raises(LaneClosedError):
        ends.caller.begin(request, late)


def test_a_result_that_came_before_the_end_can_be_read_after_it(ends: Ends):
    request, memory = ends.send(X)
    ends.deliver()
    reply = ends.serve(request)
    ends.deliver()
    ends.caller.replied(request.id)
    ends.caller.end()
    np.testing.assert_array_equal(result_of_reply(reply, [X], {}, memory), X)
    memory.finish(reply)


def test_a_call_is_moved_inline_if_its_region_cannot_be_passed(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", refuse)
    request, _ = ends.send(X)
    assert request.args[0].tensor.data == X.tobytes()
    assert ends.from_caller == []
    monkeypatch.undo()
    request, memory = ends.send(X)
    ends.deliver()
    monkeypatch.setattr(os, "dup", refuse)
    reply = ends.serve(request)
    assert reply.returns[0].tensor.data == X.tobytes()
    assert ends.from_callee == []
    memory.release()


def without_room(end: CallerLaneMemory | CalleeLaneMemory, number: int) -> None:
    """A region's frame whose descriptor the system had no room for."""
    end.descriptors._unclaimed.append(None)
    end.take(FrameKind.REGION, lane_pb2.LaneRegion(region=number).SerializeToString())


def test_a_callee_without_room_refuses_what_lies_there(ends: Ends):
    request, memory = ends.send(X)
    region = request.args[0].tensor.memory.region
    without_room(ends.callee, region)
    with pytest.raises(RefusedError, match="inline") as refusal:
        ends.serve(request)
    assert is_without_room(refusal.value)
    ends.callee.take(FrameKind.DROP, lane_pb2.LaneRegion(region=region).SerializeToString())
    with pytest.raises(WireError, match="has not passed"):
        ends.serve(request)
    memory.release()
    ends.from_caller.clear()


def test_a_caller_without_room_ends_the_lane_and_says_why(ends: Ends):
    with pytest.raises(LaneClosedError, match="cannot map a region of results"):
        without_room(ends.caller, 1)
    assert "Too many open files" in ends.no_room[0]


def test_kept_extent_is_not_reused_until_released(ends: Ends):
    request, _ = ends.send(X)
    memory = request.args[0].tensor.memory
    extents = lane_pb2.LaneExtents(extents=[memory]).SerializeToString()
    ends.caller.take(FrameKind.KEEP, extents)
    held = ends.caller.replied(request.id)
    assert held is not None
    held.release()
    other, held = ends.send(X)
    assert other.args[0].tensor.memory.offset != memory.offset
    ends.caller.take(FrameKind.RELEASE, extents)
    with pytest.raises(WireError, match="expected a kept extent"):
        ends.caller.take(FrameKind.RELEASE, extents)
    with pytest.raises(WireError, match="expected an argument of a call"):
        ends.caller.take(FrameKind.KEEP, extents)
    ends.caller.replied(other.id)
    held.release()


def test_many_releases_fit_into_frames(ends: Ends):
    for n in range(2500):
        ends.caller._on_release(1, n)
    ends.caller.tell_releases()
    counts = [
        len(lane_pb2.LaneExtents.FromString(payload).extents) for _, payload, _ in ends.from_caller
    ]
    assert counts == [1000, 1000, 500]
    assert not ends.caller.tell_releases()
    ends.from_caller.clear()
