"""Write the frames of many threads to one blocking socket, in as few system calls as possible."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.lanes.descriptors import NOT_WAITING
from opdispatch_wire.lanes.frame_kind import HEADER, PADDING, FrameKind
from opdispatch_wire.lanes.frame_outbox import (
    FrameBatch,
    FrameOutbox,
    FramePayload,
)
from opdispatch_wire.lanes.frame_stream import HIGH_WATER

# Seconds that ``close`` waits for a writing thread, which notices that the socket is shut down.
_END_WAIT = 1.0
# Up to this size in bytes, a payload is joined with its header.
_JOINED_AT_MOST = 4096


def _nothing() -> None:
    pass


class FrameWriter:
    """The writing half of a connection. Thread-safe.

    When several threads flush, one of them writes all frames. If the other side has not accepted
    them within ``patience`` seconds, a new thread writes the rest and then ends, so that a peer
    that reads slowly delays no other thread. If no thread can be started, the flushing thread
    writes the rest itself.

    ``_writing`` is held by the thread that flushes and waits for the other side; a thread started
    for the rest takes it over. After each release, the thread checks for frames that were put
    meanwhile, so that none is left. ``_sending`` is held for each step that does not block, which
    keeps frames whole. It protects ``_rest``, the unwritten rest of the current batch, the payloads
    in the outbox, and the socket from being closed during a step.

    ``on_stuck`` is called when the rest is left to a thread, and ``on_error`` by a thread that
    cannot write any more.
    """

    def __init__(
        self,
        connection: socket.socket,
        patience: float = 0.0,
        on_stuck: Callable[[], None] = _nothing,
        on_error: Callable[[], None] = _nothing,
    ) -> None:
        self._socket = connection
        self._send = connection.send
        self._send_pieces = connection.sendmsg
        self._patience = patience
        self._on_stuck = on_stuck
        self._on_error = on_error
        self._writing = threading.Lock()
        self._sending = threading.Lock()
        self._rest: FrameBatch | None = None
        self._outbox = FrameOutbox()
        self._frames = self.frames = self._outbox.frames
        """Frames of which nothing has been written."""
        self.put = self._outbox.put
        """Buffer a frame, with its descriptor if any, for the next ``flush``."""
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)
        self._is_free = threading.Event()
        self._is_free.set()
        self.is_stuck = False
        """Whether a thread waits for the other side to accept bytes."""

    def write(self, kind: FrameKind, payload: FramePayload) -> bool:
        """Put a frame and flush; return False if the connection ended before any byte was sent."""
        sending = self._sending
        if isinstance(payload, MessagePieces) or not sending.acquire(False):
            self.put(kind, payload)
            self.flush()
            return True
        try:
            header = HEADER.pack(len(payload), kind, PADDING)
            if self._frames and self._rest is None:
                before = self._outbox.take_small()
                if not self._frames:
                    header = bytes(before + header)
                elif before:
                    self._rest = FrameBatch([before])
            # ``_writing`` is not needed: without the rest of another frame, this one stays whole.
            if self._frames or self._rest is not None:
                self.put(kind, payload)
            else:
                try:
                    if len(payload) > _JOINED_AT_MOST:
                        sent = self._send_pieces((header, payload), (), NOT_WAITING)
                    else:
                        sent = self._send(header + payload, NOT_WAITING)
                except BlockingIOError:
                    sent = 0
                if sent == len(header) + len(payload):
                    return True
                self._rest = FrameBatch([header, payload]).after(sent)
        except OSError:
            is_broken = True
        else:
            is_broken = False
        finally:
            sending.release()
        if is_broken:
            self._drop()
            self._on_error()
        else:
            self.flush()
        return not is_broken

    def flush(self) -> None:
        """Write all frames, or leave them to the thread that is writing.

        Waits at most ``patience`` for the other side, as long as threads can be started. After an
        exception, such as Ctrl-C, the connection is unusable: part of a frame may have been
        written.
        """
        # A loop, because a frame put just before another thread releases the lock may have been
        # missed by that thread, and must not wait for the next flush.
        while (self._frames or self._rest is not None) and self._writing.acquire(blocking=False):
            is_ours, is_broken = True, False
            patient_until = time.monotonic() + self._patience
            try:
                while not self._step():
                    left = max(patient_until - time.monotonic(), 0.0)
                    if not left or not self._writable.poll(left * 1000):
                        is_ours = False
                        self._hand_over()
                        break
            except OSError:
                is_broken = True
                self._drop()
            finally:
                if is_ours:
                    self._writing.release()
            if is_broken:
                self._on_error()

    def detach(self) -> None:
        """Copy all unwritten bytes, so that the owners of the arrays may change them."""
        with self._sending:
            if self._rest is not None:
                self._rest = self._rest.detached()
            self._outbox.detach()

    def wait_for_room(self, deadline: float | None = None) -> None:
        """Wait while too many bytes are buffered that the peer does not accept.

        Waits at most until ``deadline``, a time of ``time.monotonic``.
        """
        while self.is_stuck and self._outbox.waiting_bytes > HIGH_WATER:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._is_free.wait(left)

    def finish(self, seconds: float) -> None:
        """Write all frames before the connection is ended, even if another thread is writing.

        Waits at most ``seconds`` for that thread, but not for the peer: bytes that it does not
        accept at once are lost.
        """
        if not self._writing.acquire(timeout=seconds):
            return
        try:
            self._step()
        except OSError:
            self._drop()
        finally:
            self._writing.release()

    def close(self) -> None:
        """Close the socket, which must have been shut down, so that a writing thread ends."""
        is_ours = self._writing.acquire(timeout=_END_WAIT)
        with self._sending:
            self._socket.close()
        self._drop()
        if is_ours:
            self._writing.release()

    # -- called with _writing held --------------------------------------------------------------

    def _step(self) -> bool:
        """Write without blocking; return whether everything was written. Raises OSError."""
        with self._sending:
            while self._rest is not None or self._frames:
                batch = self._rest if self._rest is not None else self._outbox.next_batch()
                self._rest = batch.write_now(self._socket)
                if self._rest is not None:
                    return False
        return True

    def _drop(self) -> None:
        with self._sending:
            self._rest = None
            self._outbox.clear()

    def _hand_over(self) -> None:
        """Start a thread that writes the rest and takes over ``_writing``, which is held."""
        self._is_free.clear()
        self.is_stuck = True
        thread = threading.Thread(target=self._write_rest, name="frame-writer", daemon=True)
        try:
            self._on_stuck()
            thread.start()
        except RuntimeError:  # no thread: the system's limit is reached
            self._write_rest()
        except BaseException:
            if thread.ident is None:  # it has not started, so this thread still holds the lock
                self.is_stuck = False
                self._is_free.set()
                self._writing.release()
            raise

    def _write_rest(self) -> None:
        is_broken = False
        try:
            while not self._step():
                self._writable.poll()
        except OSError:
            is_broken = True
            self._drop()
        finally:
            self.is_stuck = False
            self._is_free.set()
            self._writing.release()
        if is_broken:
            self._on_error()
        else:
            self.flush()
