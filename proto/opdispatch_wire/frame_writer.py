"""Writing the frames of many threads to one blocking socket, as few writes as possible."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

from opdispatch_wire.descriptors import PassedDescriptor
from opdispatch_wire.frames import FrameKind, frame_header

# Small frames are copied together; a large payload is written from where it is.
_COPIED_AT_MOST = 64 * 1024


class FrameWriter:
    """The writing half of a connection; any thread may use it.

    Of the threads that flush at a time, one writes all that is there. ``_writing`` is held by
    that one, and makes frames whole; after each of its releases somebody looks whether anything
    has been put meanwhile, so that nothing is left behind. ``on_stuck`` is called when the one
    that writes is about to wait for the other side to take something.
    """

    def __init__(
        self, connection: socket.socket, on_stuck: Callable[[], None] | None = None
    ) -> None:
        self._socket = connection
        self._on_stuck = on_stuck
        self.is_stuck = False
        """Whether the one that writes waits for the other side."""
        self._writing = threading.Lock()
        self._outbox: deque[tuple[FrameKind, bytes, PassedDescriptor | None]] = deque()

    def put(
        self, kind: FrameKind, payload: bytes, descriptor: PassedDescriptor | None = None
    ) -> None:
        """Adds a frame, and what goes with it, to what the next ``flush`` writes."""
        self._outbox.append((kind, payload, descriptor))

    def clear(self) -> None:
        """Drops what has not been written, when nothing can be any more."""
        self._outbox.clear()

    def flush(self) -> None:
        """Writes what there is, or leaves it to the thread that is writing. Raises OSError.

        After any error the connection is of no use: half a frame may have been written.
        """
        while self._outbox and self._writing.acquire(blocking=False):
            try:
                self._write()
            finally:
                self._writing.release()

    def _write(self) -> None:
        together = bytearray()
        while self._outbox:
            kind, payload, descriptor = self._outbox.popleft()
            if descriptor is not None:
                if together:
                    self._send(together)
                self._send(frame_header(kind, len(payload)) + payload, descriptor)
                together = bytearray()
                continue
            together += frame_header(kind, len(payload))
            if len(payload) > _COPIED_AT_MOST:
                self._send(together)
                self._send(payload)
                together = bytearray()
            else:
                together += payload
                if len(together) > _COPIED_AT_MOST:
                    self._send(together)
                    together = bytearray()
        if together:
            self._send(together)

    def _send(self, data: bytes | bytearray, descriptor: PassedDescriptor | None = None) -> None:
        beside = descriptor.ancillary if descriptor is not None else []
        try:
            sent = self._socket.sendmsg([data], beside, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.is_stuck = True
            try:
                if self._on_stuck is not None:
                    self._on_stuck()
                if not sent:
                    sent = self._socket.sendmsg([data], beside)
                self._socket.sendall(memoryview(data)[sent:])
            finally:
                self.is_stuck = False
