"""Descriptors over real sockets."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.descriptors import MAX_UNCLAIMED, PassedDescriptor, ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.frames import FrameReader

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("opdispatch-test")
    os.write(descriptor, b"contents")
    yield descriptor
    os.close(descriptor)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def receive(connection: socket.socket, received: ReceivedDescriptors, size: int = 100) -> bytes:
    space = bytearray(size)
    return bytes(space[: received.receive(connection, memoryview(space))])


def test_descriptors_arrive_in_order_with_their_bytes(pair: Pair, file: int):
    received = ReceivedDescriptors()
    pair[0].sendall(b"before")
    for text in (b"one", b"two"):
        passed = PassedDescriptor(file)
        pair[0].sendmsg([text], passed.ancillary)
    pair[0].sendall(b"after")
    text = b"".join(receive(pair[1], received) for _ in range(3))
    assert text == b"beforeonetwoafter"
    for _ in range(2):
        descriptor = received.take()
        assert os.pread(descriptor, 100, 0) == b"contents"
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)
    with pytest.raises(WireError, match="without a descriptor"):
        received.take()


def test_copies_are_closed_wherever_they_are_dropped(pair: Pair, file: int):
    before = open_descriptors()
    writer = FrameWriter(pair[0])
    writer.put(FrameKind.REGION, b"payload", PassedDescriptor(file))
    assert open_descriptors() == before + 1
    writer.flush()
    assert open_descriptors() == before, "the other side's copy is under way, and not open"
    passed = PassedDescriptor(file)
    assert open_descriptors() == before + 1
    del passed
    assert open_descriptors() == before


def test_frames_stay_in_order_when_the_other_side_is_slow(pair: Pair, file: int):
    writer, reader = FrameWriter(pair[0]), FrameReader(1 << 24)
    received, frames, kinds = ReceivedDescriptors(), [], []
    for n in range(5):
        for kind, size in ((FrameKind.CALL, 150_000), (FrameKind.REGION, 4), (FrameKind.DROP, 4)):
            descriptor = PassedDescriptor(file) if kind is FrameKind.REGION else None
            writer.put(kind, bytes([n]) * size, descriptor)
            kinds.append((kind, n, size))
            writer.flush()
    assert writer.is_stuck
    while len(frames) < len(kinds):
        reader.received(received.receive(pair[1], reader.space()))
        while (frame := reader.next_frame()) is not None:
            frames.append(frame)
    assert [(kind, payload[0], len(payload)) for kind, payload in frames] == kinds
    for _ in range(5):
        os.close(received.take())


def test_several_at_once_are_refused_and_closed(pair: Pair, file: int):
    before = open_descriptors()
    received = ReceivedDescriptors()
    socket.send_fds(pair[0], [b"x"], [file, file, file])
    with pytest.raises(WireError, match="several descriptors"):
        receive(pair[1], received)
    received.close()
    assert open_descriptors() == before


def test_untaken_descriptors_are_bounded_and_closed(pair: Pair, file: int):
    before = open_descriptors()
    received = ReceivedDescriptors()
    for _ in range(MAX_UNCLAIMED + 1):
        socket.send_fds(pair[0], [b"x"], [file])
    for _ in range(MAX_UNCLAIMED):
        receive(pair[1], received, 1)
    with pytest.raises(WireError, match="without their REGION frames"):
        receive(pair[1], received, 1)
    assert open_descriptors() == before + MAX_UNCLAIMED + 1
    del received
    assert open_descriptors() == before


def test_take_raises_in_a_process_without_room_for_descriptors(pair: Pair, file: int):
    received = ReceivedDescriptors()
    socket.send_fds(pair[0], [b"x"], [file])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(file)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        assert receive(pair[1], received) == b"x"
        with pytest.raises(OSError, match="Too many open files"):
            received.take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
