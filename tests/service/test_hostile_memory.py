"""Hostile peers on lanes that share memory: they hurt no others."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.shared_memory.memory_region import OwnedRegion
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.service.raw_lane import RawLane, find_route, raw_lane
from tests.service.running_daemon import wait_for
from tests.service.shared_memory import (
    SIZE,
    X,
    interpreter_pid,
    shared_bytes_of,
    shared_memory_of,
)


class SharingLane(RawLane):
    """One that shares memory."""

    def greet(self) -> None:
        self.say(FrameKind.HELLO, lane_messages.hello(1 << 24, shares_memory=True))
        frame = self.hear()
        assert frame is not None
        assert lane_messages.read_welcome(frame).shares_memory

    def pass_region(self, number: int, *descriptors: int) -> None:
        payload = lane_pb2.LaneRegion(region=number).SerializeToString()
        frame = frame_header(FrameKind.REGION, len(payload)) + payload
        socket.send_fds(self.socket, [frame], descriptors)

    def ask_for(self, operator: str, region: int, offset: int, length: int = SIZE) -> None:
        """Call with an argument that lies there."""
        request = self.request(7, operator, X)
        tensor = request.args[0].tensor
        tensor.data = b""
        tensor.shape[0] = length // 4
        tensor.memory.region, tensor.memory.offset = region, offset
        tensor.memory.length = length
        self.ask(request)

    def next_reply(self) -> execution_pb2.CallReply:
        """The next one, whatever is said about memory before."""
        while (frame := self.hear()) is not None:
            if frame[0] is FrameKind.REPLY:
                return execution_pb2.CallReply.FromString(frame[1])
        raise AssertionError("the lane has ended")

    def last_words(self) -> Exception:
        """Why the lane has ended."""
        last = None
        while (frame := self.hear()) is not None:
            last = frame
        assert last is not None
        assert last[0] is FrameKind.REFUSAL
        return lane_messages.refusal_error(last[1])


@pytest.fixture
def lane(bystander: oc.Session) -> Iterator[SharingLane]:
    route = find_route(bystander, "mem::same", X)
    lane = SharingLane(route.targets[0].lane, route)
    lane.greet()
    yield lane
    lane.socket.close()


def region_of(values: np.ndarray) -> OwnedRegion:
    region = OwnedRegion(values.nbytes)
    region.prepare(0, region.size)
    window = region.mapping.window(0, values.nbytes, writable=True)
    window.array(values.shape, values.dtype)[:] = values
    return region


def unsealed() -> int:
    descriptor = os.memfd_create("opdispatch-forged", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    return descriptor


def sealed_against_nothing_much() -> int:
    descriptor = unsealed()
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    os.ftruncate(descriptor, 1)
    return descriptor


def empty_region() -> int:
    descriptor = os.memfd_create("opdispatch-forged", os.MFD_ALLOW_SEALING)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def a_file() -> int:
    return os.open(__file__, os.O_RDONLY)


def a_pipe() -> int:
    ours, theirs = os.pipe()
    os.close(theirs)
    return ours


def test_a_well_behaved_peer_of_the_test_gets_its_answer(lane: SharingLane):
    region = region_of(X * 5)
    lane.pass_region(1, region.descriptor)
    lane.ask_for("mem::same", 1, 0)
    reply = lane.next_reply()
    assert not reply.HasField("error"), reply
    assert reply.returns[0].tensor.memory.length == SIZE


@pytest.mark.parametrize(
    "make", [unsealed, sealed_against_nothing_much, empty_region, a_file, a_pipe]
)
def test_unsealed_region_ends_the_lane(lane: SharingLane, make: Callable[[], int]):
    descriptor = make()
    lane.pass_region(1, descriptor)
    os.close(descriptor)
    error = lane.last_words()
    assert isinstance(error, WireError)
    assert "region 1" in str(error)


@pytest.mark.parametrize("count", [0, 2, 3])
def test_a_region_comes_with_one_descriptor(lane: SharingLane, bystander: oc.Session, count: int):
    region = region_of(X)
    pid = interpreter_pid(bystander)
    before = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    lane.pass_region(1, *[region.descriptor] * count)
    assert isinstance(lane.last_words(), WireError)
    lane.socket.close()
    assert wait_for(lambda: len(list(Path(f"/proc/{pid}/fd").iterdir())) <= before)


def test_descriptors_without_regions_are_closed_with_the_lane(
    lane: SharingLane, bystander: oc.Session
):
    region, pid = region_of(X), interpreter_pid(bystander)
    cancel = frame_header(FrameKind.CANCEL, 0)
    for _ in range(20):
        try:
            socket.send_fds(lane.socket, [cancel], [region.descriptor])
        except OSError:
            break
    assert "descriptors" in str(lane.last_words())
    mine = shared_memory_of(pid)
    assert wait_for(lambda: shared_memory_of(pid)[0] <= 1), mine


@pytest.mark.parametrize(
    ("region", "offset", "length"),
    [
        (2, 0, SIZE),
        (0, 0, SIZE),
        (2**32 - 1, 0, SIZE),
        (1, 4, 1 << 20),
        (1, 1 << 20, SIZE),
        (1, 2**63, SIZE),
        (1, 2**64 - 4, SIZE),
        (1, 2, SIZE // 2),
    ],
)
def test_a_place_that_is_not_the_peers_fails_that_call_alone(
    lane: SharingLane, region: int, offset: int, length: int
):
    passed = region_of(X)
    lane.pass_region(1, passed.descriptor)
    lane.ask_for("mem::same", region, offset, length)
    error = error_from_status(lane.next_reply().error)
    assert isinstance(error, WireError)
    assert "memory" in str(error)
    lane.ask_for("mem::same", 1, 0)
    assert not lane.next_reply().HasField("error")


def test_a_peer_cannot_name_the_regions_of_another(lane: SharingLane, bystander: oc.Session):
    """The other one has passed its regions 1 and so on to the same interpreter."""
    route = lane.route
    assert route is not None
    with raw_lane(route.targets[0].lane, route):
        for number in range(1, 5):
            lane.ask_for("mem::same", number, 0)
            error = error_from_status(lane.next_reply().error)
            assert isinstance(error, WireError)
            assert "has not passed" in str(error)
    assert (bystander.ops.mem.add(X, X) == 2).all()


def say_region_twice(lane: SharingLane) -> None:
    region = region_of(X)
    lane.pass_region(1, region.descriptor)
    lane.pass_region(1, region.descriptor)


def drop_what_is_not_there(lane: SharingLane) -> None:
    lane.say(FrameKind.DROP, lane_pb2.LaneRegion(region=9).SerializeToString())


def release_what_is_not_held(lane: SharingLane) -> None:
    extents = lane_pb2.LaneExtents()
    extents.extents.add(region=1, offset=0)
    lane.say(FrameKind.RELEASE, extents.SerializeToString())


def release_twice(lane: SharingLane) -> None:
    region = region_of(X)
    lane.pass_region(1, region.descriptor)
    lane.ask_for("mem::same", 1, 0)
    memory = lane.next_reply().returns[0].tensor.memory
    extents = lane_pb2.LaneExtents(extents=[memory, memory])
    lane.say(FrameKind.RELEASE, extents.SerializeToString())


def keep_something(lane: SharingLane) -> None:
    lane.say(FrameKind.KEEP, b"")


def garbage(lane: SharingLane) -> None:
    lane.say(FrameKind.RELEASE, b"\xff" * 30)


@pytest.mark.parametrize(
    "speak",
    [
        say_region_twice,
        drop_what_is_not_there,
        release_what_is_not_held,
        release_twice,
        keep_something,
        garbage,
    ],
)
def test_malformed_memory_frame_ends_the_lane(
    lane: SharingLane, speak: Callable[[SharingLane], None]
):
    speak(lane)
    assert isinstance(lane.last_words(), WireError)


def test_peer_that_did_not_ask_for_memory_cannot_pass_any(bystander: oc.Session):
    route = find_route(bystander, "mem::same", X)
    with raw_lane(route.targets[0].lane, route) as plain:
        plain.greet()
        plain.say(FrameKind.REGION, lane_pb2.LaneRegion(region=1).SerializeToString())
        frame = plain.hear()
        assert frame is not None
        assert frame[0] is FrameKind.REFUSAL


def test_the_daemon_takes_no_memory(bystander: oc.Session):
    with raw_lane(bystander.server_info.lane) as plain:
        plain.say(FrameKind.HELLO, lane_messages.hello(1 << 24, shares_memory=True))
        frame = plain.hear()
        assert frame is not None
        assert not lane_messages.read_welcome(frame).shares_memory
        region = region_of(X)
        payload = lane_pb2.LaneRegion(region=1).SerializeToString()
        frame_bytes = frame_header(FrameKind.REGION, len(payload)) + payload
        socket.send_fds(plain.socket, [frame_bytes], [region.descriptor])
        frame = plain.hear()
        assert frame is not None
        assert frame[0] is FrameKind.REFUSAL


def test_a_peer_that_never_releases_results_keeps_no_other_waiting(
    lane: SharingLane, bystander: oc.Session
):
    region = region_of(X)
    lane.pass_region(1, region.descriptor)
    for _ in range(300):
        lane.ask_for("mem::same", 1, 0)
        assert not lane.next_reply().HasField("error")
    assert (bystander.ops.mem.add(X, X) == 2).all()
    pid = interpreter_pid(bystander)
    held = shared_bytes_of(pid)
    lane.socket.close()
    assert wait_for(lambda: shared_bytes_of(pid) < held // 2)
