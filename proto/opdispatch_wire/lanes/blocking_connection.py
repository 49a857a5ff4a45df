"""Frames over one blocking socket: one thread at a time reads, any thread writes."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import time
from collections.abc import Callable

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.brief_spin import BriefSpin
from opdispatch_wire.lanes.descriptors import NOT_WAITING, ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.frames import Frame, FrameReader
from opdispatch_wire.lanes.lane_messages import LaneClosedError

# Longest wait for one poll, in seconds: it takes a 32-bit number of milliseconds.
_LONGEST_WAIT = 86400.0
# Seconds that a writing thread waits for the other side before it leaves the rest to a new thread.
_WRITING_PATIENCE = 0.01


class BlockingConnection:
    """One connection. Any thread may write; the caller ensures that only one reads at a time.

    ``on_stuck`` is called when the other side accepts no bytes for a moment. ``on_break`` is called
    with the reason why the connection has ended, each time that is noticed.
    """

    def __init__(
        self,
        connection: socket.socket,
        limit: int,
        on_stuck: Callable[[], None],
        on_break: Callable[[str], None],
    ) -> None:
        connection.settimeout(None)
        self._socket = connection
        self._reader = FrameReader(limit)
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        self._poll = self._readable.poll
        self._look = functools.partial(self._poll, 0)
        self._spin = BriefSpin()
        self.writer = FrameWriter(connection, _WRITING_PATIENCE, on_stuck, self.break_off)
        self.put = self.writer.put
        """Buffer a frame, with its descriptor if any, for the next ``flush``."""
        self._on_break = on_break
        self._is_broken = False
        self.descriptors: ReceivedDescriptors | None = None
        """Receives the descriptors of frames; if None, they are closed on arrival."""

    def read_frame(self, deadline: float | None, *, spins: bool = False) -> Frame:
        """Return the next frame.

        Raises TimeoutError, LaneClosedError if the connection has ended, and WireError, which ends
        it. With ``spins``, the thread may poll for a moment before it sleeps.
        """
        reader = self._reader
        while not self._is_broken:
            left = None if deadline is None else deadline - time.monotonic()
            try:
                if reader.is_ahead and (frame := reader.next_frame()) is not None:
                    return frame
            except WireError as error:
                raise self.broken(error) from None
            if left is not None and left <= 0:
                raise TimeoutError
            # In milliseconds, rounded up, so that the deadline has passed after a timeout.
            longest = None if left is None else int(min(left, _LONGEST_WAIT) * 1000) + 1
            # An exception of a signal handler is raised here, where no bytes can be lost ... And
            # polling first is cheaper than a blocking read, which wakes up when the peer reads.
            if spins:
                readable = self._spin.wait(self._look, self._poll, longest)
            else:
                readable = self._poll(longest)
            if not readable:
                continue  # the deadline has passed, or is far away
            try:
                frame = reader.receive(self._socket, self.descriptors, NOT_WAITING)
                if frame is not None:
                    return frame
            except BlockingIOError:
                continue
            except (EOFError, OSError):
                self.break_off()
            except WireError as error:
                raise self.broken(error) from None
            except BaseException:
                self.break_off()  # ... and hardly ever here, where some may be
                raise
        raise LaneClosedError("the other side closed the connection")

    def flush(self) -> None:
        """Write the buffered frames, or leave them to a thread that is writing.

        Raises LaneClosedError.
        """
        try:
            self.writer.flush()
        except BaseException:
            self.break_off()  # half a frame may have been written
            raise
        if self._is_broken:
            raise LaneClosedError("the other side closed the connection")

    def write(self, kind: FrameKind, payload: FramePayload) -> None:
        """Write a frame, as ``put`` and ``flush`` do. Raises LaneClosedError."""
        try:
            was_sent = self.writer.write(kind, payload)
        except BaseException:
            self.break_off()  # half a frame may have been written
            raise
        if self._is_broken:
            raise LaneClosedError("the other side closed the connection", was_sent=was_sent)

    def detach(self) -> None:
        """Copy all unwritten bytes, so that the owners of the arrays may change them."""
        self.writer.detach()

    def wait_for_room(self, deadline: float | None) -> None:
        """Wait until ``deadline`` while the other side accepts no more of the buffered bytes."""
        self.writer.wait_for_room(deadline)

    def has_been_left(self) -> bool:
        """Return whether the other side has closed the connection. Does not block.

        Only for the thread that may read, while no reply is awaited.
        """
        if not self._poll(0):
            return False
        try:
            left = not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            left = True
        return left

    def broken(self, error: WireError) -> WireError:
        """End the connection because of a malformed message, and return the error."""
        self.break_off(str(error))
        return error

    def break_off(self, why: str = "the other side closed the connection") -> None:
        """End the connection in both directions; readers and writers notice."""
        self._is_broken = True  # set first: frames received before are not used any more
        self.shut_down()
        self._on_break(why)

    def shut_down(self) -> None:
        """Shut the socket down as ``break_off`` does, without calling ``on_break``."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, once no thread uses it. Idempotent."""
        self.writer.close()
        if self.descriptors is not None:
            self.descriptors.close()
