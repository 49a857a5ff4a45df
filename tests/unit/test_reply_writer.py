"""Replies of several threads on one connection: whole, in order, and nobody waits for long."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from opdispatch_server.reply_writer import ReplyWriter
from opdispatch_wire.frames import FrameKind, FrameReader

LONG = bytes(8 << 20)
"""More than the system takes at once."""


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def heard_by(peer: socket.socket) -> list[tuple[FrameKind, int]]:
    """What comes until a refusal, or the end of the connection: kinds and lengths."""
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
    writer = ReplyWriter(ours)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()  # a thread writes the rest

    def end() -> None:
        writer.put(FrameKind.REFUSAL, b"why")
        writer.finish(60)
        ours.shutdown(socket.SHUT_RDWR)

    ending = threading.Thread(target=end)
    ending.start()
    assert heard_by(theirs) == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]
    ending.join()


def test_a_peer_that_does_not_read_is_not_waited_for_longer_than_said(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer = ReplyWriter(ours)
    writer.put(FrameKind.REPLY, LONG)
    writer.flush()
    writer.put(FrameKind.REFUSAL, b"why")
    writer.finish(0.05)  # or it would not come back: the peer reads only after that
    assert heard_by(theirs) == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]


def test_a_peer_that_has_gone_is_not_waited_for(sockets: tuple[socket.socket, socket.socket]):
    ours, theirs = sockets
    theirs.close()
    writer = ReplyWriter(ours)
    writer.put(FrameKind.REFUSAL, b"why")
    writer.finish(3600)
    writer.flush()


def test_who_flushes_writes_all_where_no_thread_can_be_started(
    sockets: tuple[socket.socket, socket.socket],
):
    ours, theirs = sockets
    writer = ReplyWriter(ours)
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
    peer.join()
    assert heard == [(FrameKind.REPLY, len(LONG)), (FrameKind.REFUSAL, 3)]
    writer.wait_for_room()
