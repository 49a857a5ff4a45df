"""Frames written together, and the rest that a slow peer leaves."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.lanes.descriptors import PassedDescriptor
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import FrameBatch, FrameOutbox
from opdispatch_wire.lanes.frames import FrameReader

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def payloads_of(data: bytes) -> list[bytes]:
    reader, payloads = FrameReader(1 << 24), []
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        reader.received(count)
        data = data[count:]
        while (frame := reader.next_frame()) is not None:
            payloads.append(bytes(frame[1]))
    return payloads


def sizes_of(batch: FrameBatch) -> list[int]:
    return [len(buffer) for buffer in batch.buffers]


def test_small_frames_are_one_buffer():
    outbox = FrameOutbox()
    for number in range(100):
        outbox.put(FrameKind.REPLY, bytes([number]))
    assert outbox.waiting_bytes == 100
    batch = outbox.next_batch()
    assert not outbox.frames
    assert sizes_of(batch) == [100 * 9]
    assert payloads_of(bytes(batch.buffers[0])) == [bytes([number]) for number in range(100)]


def test_a_large_payload_is_written_from_where_it_is_beside_what_came_before():
    outbox, large = FrameOutbox(), bytes(100_000)
    outbox.put(FrameKind.CALL, b"small")
    outbox.put(FrameKind.CALL, large)
    outbox.put(FrameKind.CALL, b"after")
    batch = outbox.next_batch()
    assert sizes_of(batch) == [8 + 5 + 8, 100_000]
    assert batch.buffers[1] is large
    assert sizes_of(outbox.next_batch()) == [8 + 5]


def test_a_descriptor_goes_with_the_first_byte_of_its_frame(tmp_path: Path):
    descriptor = os.open(tmp_path / "file", os.O_CREAT)
    outbox = FrameOutbox()
    outbox.put(FrameKind.CALL, b"before")
    outbox.put(FrameKind.REGION, b"region", PassedDescriptor(descriptor))
    outbox.put(FrameKind.CALL, b"after")
    os.close(descriptor)
    batches = [outbox.next_batch() for _ in range(3)]
    assert [batch.descriptor is not None for batch in batches] == [False, True, False]
    assert not outbox.frames


def test_messages_of_many_pieces_arrive_whole(pair: Pair):
    outbox, message = FrameOutbox(), MessagePieces()
    for number in range(2000):  # more than the system takes at once
        message.add(number.to_bytes(2, "big"))
    outbox.put(FrameKind.REPLY, message)
    assert outbox.next_batch().write_now(pair[0]) is None
    assert payloads_of(pair[1].recv(1 << 16)) == [
        b"".join(n.to_bytes(2, "big") for n in range(2000))
    ]


def test_unsent_rest_of_a_batch_can_be_written_later(pair: Pair):
    outbox, contents = FrameOutbox(), os.urandom(3_000_000)
    outbox.put(FrameKind.REPLY, contents)
    rest = outbox.next_batch().write_now(pair[0])
    assert rest is not None
    assert 0 < sum(sizes_of(rest)) < len(contents)
    came = b""
    while len(came) < len(contents) + 8:
        came += pair[1].recv(1 << 20)
        rest = rest.write_now(pair[0]) if rest is not None else None
    assert payloads_of(came) == [contents]


def test_copies_are_written_of_what_has_been_detached(pair: Pair):
    owned = np.ones(1_000_000, np.uint8)
    outbox = FrameOutbox()
    for _ in range(2):
        message = MessagePieces()
        message.add(b"head")
        message.add(memoryview(owned))
        outbox.put(FrameKind.CALL, message)
    rest = outbox.next_batch().write_now(pair[0])
    assert rest is not None
    rest = rest.detached()
    outbox.detach()
    owned[:] = 2
    came = b""
    while len(came) < 2 * (4 + len(owned) + 8):
        came += pair[1].recv(1 << 20)
        if rest is None and outbox:
            rest = outbox.next_batch()
        rest = rest.write_now(pair[0]) if rest is not None else None
    assert payloads_of(came) == [b"head" + b"\1" * len(owned)] * 2


def test_a_peer_that_takes_nothing_leaves_the_batch_as_it_was(pair: Pair):
    pair[0].setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            pair[0].send(bytes(1 << 16))
    batch = FrameBatch([b"x"])
    assert batch.write_now(pair[0]) is batch


def test_a_peer_that_has_gone_is_an_error(pair: Pair):
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        FrameBatch([b"x"]).write_now(pair[0])
