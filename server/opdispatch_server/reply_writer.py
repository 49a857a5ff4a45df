"""Writing replies to a lane without making the threads wait that have them."""

from __future__ import annotations

import socket
import threading
from collections import deque

from opdispatch_wire.descriptors import PassedDescriptor
from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.frame_stream import HIGH_WATER
from opdispatch_wire.frames import FrameKind, frame_header

# Small frames are copied together; a large payload is written from where it is.
_COPIED_AT_MOST = 64 * 1024
# The system takes at most 1,024 (IOV_MAX).
_PIECES_AT_ONCE = 512

Buffers = list[bytes | bytearray | memoryview]
Batch = tuple[Buffers, PassedDescriptor | None]
"""Bytes to be written together, and the descriptor that goes with the first of them."""


class ReplyWriter:
    """The writing half of a connection; any thread may use it.

    A thread that flushes writes what the system takes at once. If that is not all, a thread of
    its own writes the rest, and goes when everything is written: a peer that does not read
    keeps that one waiting, and nobody else.

    ``_writing`` is held by whoever writes, and makes frames whole; a thread that is started
    for the rest takes it over. After each of its releases somebody looks whether anything
    has been put meanwhile, so that nothing is left behind.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()
        self._outbox: deque[tuple[FrameKind, bytes | MessagePieces, PassedDescriptor | None]] = (
            deque()
        )
        self._is_free = threading.Event()
        self._is_free.set()

    def put(
        self,
        kind: FrameKind,
        payload: bytes | MessagePieces,
        descriptor: PassedDescriptor | None = None,
    ) -> None:
        """Adds a frame, and what goes with it, to what the next ``flush`` writes."""
        self._outbox.append((kind, payload, descriptor))

    def flush(self) -> None:
        """Writes what there is, or leaves it to the thread that is writing.

        Does not wait. That the connection has ended, whoever reads it will notice.
        """
        while self._outbox and self._writing.acquire(blocking=False):
            is_handed_over = False
            try:
                rest = self._write_now()
                if rest is not None:
                    is_handed_over = True
                    self._is_free.clear()
                    threading.Thread(
                        target=self._write_rest, args=(rest,), name="reply-writer", daemon=True
                    ).start()
            except OSError:
                self._outbox.clear()
            finally:
                if not is_handed_over:
                    self._writing.release()

    def wait_for_room(self) -> None:
        """Waits while the peer does not take what is there for it already."""
        while not self._is_free.is_set():
            if sum(len(payload) for _, payload, _ in list(self._outbox)) <= HIGH_WATER:
                return
            self._is_free.wait()

    def _write_now(self) -> Batch | None:
        """Writes until the system takes no more; what it did not take."""
        while self._outbox:
            buffers, descriptor = self._next_batch()
            beside = descriptor.ancillary if descriptor is not None else []
            try:
                pieces = buffers[:_PIECES_AT_ONCE]
                sent = self._socket.sendmsg(pieces, beside, socket.MSG_DONTWAIT)
            except BlockingIOError:
                sent = 0
            if rest := _after(buffers, sent):
                return rest, None if sent else descriptor
        return None

    def _write_rest(self, rest: Batch | None) -> None:
        try:
            while rest is not None:
                buffers, descriptor = rest
                if descriptor is not None:
                    buffers = _after(buffers, self._socket.sendmsg(buffers, descriptor.ancillary))
                for buffer in buffers:
                    self._socket.sendall(buffer)
                rest = self._next_batch() if self._outbox else None
        except OSError:
            self._outbox.clear()
        finally:
            self._is_free.set()
            self._writing.release()
        self.flush()

    def _next_batch(self) -> Batch:
        """The next frames, to be written together."""
        together = bytearray()
        while self._outbox and len(together) < _COPIED_AT_MOST:
            if self._outbox[0][2] is not None and together:
                break
            kind, payload, descriptor = self._outbox.popleft()
            together += frame_header(kind, len(payload))
            if isinstance(payload, MessagePieces):
                return [together, *payload.parts], None
            if len(payload) > _COPIED_AT_MOST:
                return [together, payload], None
            together += payload
            if descriptor is not None:
                return [together], descriptor
        return [together], None


def _after(buffers: Buffers, sent: int) -> Buffers:
    """What is left of ``buffers`` after so many bytes."""
    left: Buffers = []
    for buffer in buffers:
        if sent < len(buffer):
            left.append(memoryview(buffer)[sent:])
        sent = max(sent - len(buffer), 0)
    return left
