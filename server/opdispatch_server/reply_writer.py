"""Writing replies to a lane without making the threads wait that have them."""

from __future__ import annotations

import socket
import threading

from opdispatch_wire.descriptors import PassedDescriptor
from opdispatch_wire.frame_outbox import FrameBatch, FrameOutbox, FramePayload
from opdispatch_wire.frame_stream import HIGH_WATER
from opdispatch_wire.frames import FrameKind


class ReplyWriter:
    """The writing half of a connection; any thread may use it.

    A thread that flushes writes what the system takes at once. If that is not all, a thread of
    its own writes the rest, and goes when everything is written: a peer that does not read
    keeps that one waiting, and nobody else. Where no thread can be started, it is the one that
    flushes: replies are not lost.

    ``_writing`` is held by whoever writes, and makes frames whole; a thread that is started
    for the rest takes it over. After each of its releases somebody looks whether anything
    has been put meanwhile, so that nothing is left behind.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._writing = threading.Lock()
        self._outbox = FrameOutbox()
        self._is_free = threading.Event()
        self._is_free.set()

    def put(
        self, kind: FrameKind, payload: FramePayload, descriptor: PassedDescriptor | None = None
    ) -> None:
        """Adds a frame, and what goes with it, to what the next ``flush`` writes."""
        self._outbox.put(kind, payload, descriptor)

    def flush(self) -> None:
        """Writes what there is, or leaves it to the thread that is writing.

        Does not wait while threads can be started. That the connection has ended, whoever reads
        it will notice.
        """
        while self._outbox and self._writing.acquire(blocking=False):
            rest = None
            try:
                rest = self._write_now()
            except OSError:
                self._outbox.clear()
            finally:
                if rest is None:
                    self._writing.release()
            if rest is not None:
                self._hand_over(rest)

    def finish(self, seconds: float) -> None:
        """Writes what there is before the connection is ended, whoever is writing now.

        Waits at most so long for that one, and for nobody else: what the peer has no room for
        is lost.
        """
        if not self._writing.acquire(timeout=seconds):
            return
        try:
            self._write_now()
        except OSError:
            self._outbox.clear()
        finally:
            self._writing.release()

    def close(self) -> None:
        """Closes the socket, which has been shut down: whoever writes notices, and ends."""
        with self._writing:
            self._socket.close()
            self._outbox.clear()

    def wait_for_room(self) -> None:
        """Waits while the peer does not take what is there for it already."""
        while not self._is_free.is_set():
            if self._outbox.waiting_bytes <= HIGH_WATER:
                return
            self._is_free.wait()

    def _write_now(self) -> FrameBatch | None:
        """Writes until the system takes no more; what it did not take."""
        while self._outbox:
            if rest := self._outbox.next_batch().write_now(self._socket):
                return rest
        return None

    def _hand_over(self, rest: FrameBatch) -> None:
        """Has a thread go on with ``_writing``, which is held."""
        self._is_free.clear()
        thread = threading.Thread(
            target=self._write_rest, args=(rest,), name="reply-writer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # of threading: the system's limit is reached
            self._write_rest(rest)

    def _write_rest(self, rest: FrameBatch) -> None:
        try:
            rest.write_all(self._socket)
            while self._outbox:
                self._outbox.next_batch().write_all(self._socket)
        except OSError:
            self._outbox.clear()
        finally:
            self._is_free.set()
            self._writing.release()
        self.flush()
