"""Frames of several threads on one connection: whole, in order, and without long waits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.frames import FrameReader
from tests.service.running_daemon import wait_for
from tests.waits import join

LONG = bytes(8 << 20)
"""More than the system takes at once."""


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def heard_by(peer: socket.socket) -> list[tuple[FrameKind, int]]:
    """Return kinds and lengths of the frames until a refusal, or the end of the connection."""
    reader, frames = FrameReader(1 << 24), []
    while count := peer.recv_into(reader.space()):
        reader.received(count)
        while (frame := reader.next_frame()) is not None:
            frames.append((frame[0], len(frame[1])))
            if frame[0] is FrameKind.REFUSAL:
                return frames
    return frames


def test_last_words_arrive_though_another_thread_is_writing(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer = FrameWriter(ours)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()  # a thread writes the rest

    def end() -> None:
        writer.put(FrameKind.REFUSAL, b"why")
        writer.finish(60)
        ours.shutdown(socket.SHUT_RDWR)

    ending = threading.Thread(target=end)
    ending.start()
    assert heard_by(theirs) == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]
    join(ending)


def test_a_peer_that_does_not_read_is_not_waited_for_longer_than_said(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer = FrameWriter(ours)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()
    writer.put(FrameKind.REFUSAL, b"why")
    writer.finish(0.05)  # or it would not come back: the peer reads only after that
    assert heard_by(theirs) == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]


def test_a_peer_that_has_gone_is_not_waited_for(sockets: tuple[socket.socket, socket.socket]):
    ours, theirs = sockets
    theirs.close()
    writer = FrameWriter(ours)
    writer.put(FrameKind.REFUSAL, b"why")
    writer.finish(3600)
    writer.flush()


def test_flush_writes_everything_if_no_thread_can_start(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer = FrameWriter(ours)
    heard: list[tuple[FrameKind, int]] = []
    peer = threading.Thread(target=lambda: heard.extend(heard_by(theirs)))
    peer.start()
    before = threading.stack_size(1 << 46)  # which no thread can get
    try:
        writer.put(FrameKind.REPLY, LONG)
        writer.flush()
    finally:
        threading.stack_size(before)
    writer.put(FrameKind.REFUSAL, b"why")
    writer.flush()  # the right to write is free again
    join(peer)
    assert heard == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]
    writer.wait_for_room()


def test_end_of_the_connection_is_reported_once(sockets: tuple[socket.socket, socket.socket]):
    ours, theirs = sockets
    told = threading.Semaphore(0)
    writer = FrameWriter(ours, on_error=told.release)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()
    theirs.close()  # in the middle of it
    assert told.acquire(timeout=60)
    assert wait_for(lambda: not writer.is_stuck)
    writer.put(FrameKind.REFUSAL, b"why")
    writer.flush()
    assert told.acquire(timeout=60)
    assert not told.acquire(blocking=False)


def test_a_peer_that_reads_needs_no_other_thread(sockets: tuple[socket.socket, socket.socket]):
    ours, theirs = sockets
    stuck: list[str] = []
    writer = FrameWriter(ours, patience=60, on_stuck=lambda: stuck.append("stuck"))
    heard: list[tuple[FrameKind, int]] = []
    peer = threading.Thread(target=lambda: heard.extend(heard_by(theirs)))
    peer.start()
    writer.put(FrameKind.REPLY, LONG)
    writer.put(FrameKind.REFUSAL, b"why")
    writer.flush()
    join(peer)
    assert heard == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]
    assert not stuck


def test_a_peer_that_reads_slowly_is_not_waited_for_either(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer, is_flushed = FrameWriter(ours, patience=0.05), threading.Event()

    def read_slowly() -> None:
        while not is_flushed.wait(0.005):
            theirs.recv(1 << 16)

    peer = threading.Thread(target=read_slowly)
    peer.start()
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()
    is_flushed.set()
    assert writer.is_stuck, "all of it was written, which took its time"
    join(peer)
    ours.shutdown(socket.SHUT_RDWR)
    writer.close()


def test_a_writer_is_closed_while_the_peer_does_not_read(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, _ = sockets
    writer = FrameWriter(ours)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()
    ours.shutdown(socket.SHUT_RDWR)
    writer.close()
    assert wait_for(lambda: not writer.is_stuck)
    writer.wait_for_room()
    assert ours.fileno() == -1
