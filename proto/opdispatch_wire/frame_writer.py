"""Writing the frames of many threads to one blocking socket, as few writes as possible."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable

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
        self._outbox: deque[tuple[FrameKind, bytes]] = deque()

    def put(self, kind: FrameKind, payload: bytes) -> None:
        """Adds a frame to what the next ``flush`` writes."""
        self._outbox.append((kind, payload))

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
            kind, payload = self._outbox.popleft()
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

    def _send(self, data: bytes | bytearray) -> None:
        if self._on_stuck is None:
            self._socket.sendall(data)
            return
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.is_stuck = True
            try:
                self._on_stuck()
                self._socket.sendall(memoryview(data)[sent:])
            finally:
                self.is_stuck = False
