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

# What the system is asked to wait at most; its milliseconds are of 32 bits.
_LONGEST_WAIT = 86400.0
# How long the other side may take for what is written before a thread of its own goes on with it.
_WRITING_PATIENCE = 0.01


class BlockingConnection:
    """One connection. ``on_stuck`` is called when the other side takes nothing for a moment.

    ``on_break`` is called with the reason why the connection has ended, each time that is noticed.
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
        """Add a frame, and what goes with it, to what the next ``flush`` writes."""
        self._on_break = on_break
        self._is_broken = False
        self.descriptors: ReceivedDescriptors | None = None
        """Those that come with frames; None: they are closed on arrival."""

    def read_frame(self, deadline: float | None, *, spins: bool = False) -> Frame:
        """Return the next frame.

        Raises TimeoutError, LaneClosedError, and WireError, the end of it.

        With ``spins``, the thread may look for it for a moment before it sleeps.
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
            # In milliseconds, rounded up: when so long has passed, the deadline has, too.
            longest = None if left is None else int(min(left, _LONGEST_WAIT) * 1000) + 1
            # A signal's exception is raised here, where no byte can be lost by it ... And to poll
            # first costs less than a read that waits: that is woken also when the other side reads.
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
                self.break_off()  # ... and not here, but for a few instructions
                raise
        raise LaneClosedError("the other side has gone")

    def flush(self) -> None:
        """Write what there is, or leave it to a thread that does. Raises LaneClosedError."""
        try:
            self.writer.flush()
        except BaseException:
            self.break_off()  # half a frame may have been written
            raise
        if self._is_broken:
            raise LaneClosedError("the other side has gone")

    def write(self, kind: FrameKind, payload: FramePayload) -> None:
        """Write a frame at once, like ``put`` and ``flush``. Raises LaneClosedError."""
        try:
            was_sent = self.writer.write(kind, payload)
        except BaseException:
            self.break_off()  # half a frame may have been written
            raise
        if self._is_broken:
            raise LaneClosedError("the other side has gone", was_sent=was_sent)

    def detach(self) -> None:
        """Copy what has not been written yet: its owners may change it from now on."""
        self.writer.detach()

    def wait_for_room(self, deadline: float | None) -> None:
        """Wait while the other side does not take what is there for it already."""
        self.writer.wait_for_room(deadline)

    def has_been_left(self) -> bool:
        """Return whether the other side has gone.

        For the thread that may read, while nothing is awaited.
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
        """Break the connection off over a malformed message, and return the error."""
        self.break_off(str(error))
        return error

    def break_off(self, why: str = "the other side has gone") -> None:
        """End the connection for both sides; readers and writers notice."""
        self._is_broken = True  # nothing that has come already is believed, either
        self.shut_down()
        self._on_break(why)

    def shut_down(self) -> None:
        """Shut the connection down like ``break_off``, without calling ``on_break``."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket, when it is unused. Idempotent."""
        self.writer.close()
        if self.descriptors is not None:
            self.descriptors.close()
