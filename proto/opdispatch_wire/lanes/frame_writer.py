"""Writing the frames of many threads to one blocking socket, as few writes as possible."""

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

# Seconds that the closing thread waits for the thread that writes the rest, which has been told.
_END_WAIT = 1.0
# A longer payload is not copied behind its header.
_JOINED_AT_MOST = 4096


def _nothing() -> None:
    pass


class FrameWriter:
    """The writing half of a connection; any thread may use it.

    Of the threads that flush at a time, one writes all that is there. If the other side has not
    taken it in ``patience`` seconds, a thread of its own writes the rest, and goes when
    everything is written: a peer that reads slowly keeps that one waiting, and no other.
    Where no thread can be started, it is the one that flushes: frames are not lost.

    ``_writing`` is held by the thread that flushes, and waits for the other side; a thread that is
    started for the rest takes it over. After each of its releases a thread looks whether anything
    has been put meanwhile, so that nothing is left behind. ``_sending`` is held for each step that
    does not wait, and makes frames whole; it protects ``_rest``, what is left of the batch that is
    being written, the payloads in the outbox, and the socket from being closed in the midst of it.

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
        """Those that nothing of has been written."""
        self.put = self._outbox.put
        """Add a frame, and what goes with it, to what the next ``flush`` writes."""
        self._writable = select.poll()
        self._writable.register(connection, select.POLLOUT)
        self._is_free = threading.Event()
        self._is_free.set()
        self.is_stuck = False
        """Whether a thread waits for the other side to take something."""

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
            # Without ``_writing``: frames are whole where there is no rest of one.
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
        """Write what there is, or leave it to the thread that is writing.

        Waits no longer than ``patience`` for the other side, while threads can be started. After
        an exception, such as Ctrl-C, the connection is of no use: half a frame may have been
        written.
        """
        # A loop: a frame that is put just before another thread releases the lock may not have been
        # seen by that one, and must not lie until the next flush.
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
        """Copy what has not been written yet: its owners may change it from now on."""
        with self._sending:
            if self._rest is not None:
                self._rest = self._rest.detached()
            self._outbox.detach()

    def wait_for_room(self, deadline: float | None = None) -> None:
        """Wait while the peer does not take what is there for it already.

        No longer than until ``deadline``, a time of ``time.monotonic``.
        """
        while self.is_stuck and self._outbox.waiting_bytes > HIGH_WATER:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._is_free.wait(left)

    def finish(self, seconds: float) -> None:
        """Write what there is before the connection is ended, even if another thread is writing.

        Waits at most so long for that one, and for no other: what the peer has no room for
        is lost.
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
        """Close the socket, which has been shut down: the writer notices, and ends."""
        is_ours = self._writing.acquire(timeout=_END_WAIT)
        with self._sending:
            self._socket.close()
        self._drop()
        if is_ours:
            self._writing.release()

    # -- by who holds _writing ------------------------------------------------------------------

    def _step(self) -> bool:
        """Write until the system takes no more. Whether that is all; raises OSError."""
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
        """Start a thread that goes on with ``_writing``, which is held."""
        self._is_free.clear()
        self.is_stuck = True
        thread = threading.Thread(target=self._write_rest, name="frame-writer", daemon=True)
        try:
            self._on_stuck()
            thread.start()
        except RuntimeError:  # of threading: the system's limit is reached
            self._write_rest()
        except BaseException:
            if thread.ident is None:  # it has not taken over
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
