"""Writing the frames of many threads to one blocking socket, as few writes as possible."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

from opdispatch_wire.descriptors import PassedDescriptor
from opdispatch_wire.frame_outbox import FrameOutbox, FramePayload
from opdispatch_wire.frames import FrameKind


class FrameWriter:
    """The writing half of a connection; any thread may use it.

    Of the threads that flush at a time, one writes all that is there. ``_writing`` is held by
    that one, and makes frames whole; after each of its releases somebody looks whether anything
    has been put meanwhile, so that nothing is left behind. ``on_stuck`` is called when the one
    that writes is about to wait for the other side to take something.
    """

    def __init__(self, connection: socket.socket, on_stuck: Callable[[], None]) -> None:
        self._socket = connection
        self._on_stuck = on_stuck
        self.is_stuck = False
        """Whether the one that writes waits for the other side."""
        self._writing = threading.Lock()
        self._outbox = FrameOutbox()

    def put(
        self, kind: FrameKind, payload: FramePayload, descriptor: PassedDescriptor | None = None
    ) -> None:
        """Adds a frame, and what goes with it, to what the next ``flush`` writes."""
        self._outbox.put(kind, payload, descriptor)

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
        while self._outbox:
            rest = self._outbox.next_batch().write_now(self._socket)
            if rest is not None:
                self.is_stuck = True
                try:
                    self._on_stuck()
                    rest.write_all(self._socket)
                finally:
                    self.is_stuck = False
