"""A lane's connection in an event loop: frames in, frames out, in bounded memory.

The called side stops reading while the caller does not take its replies: one that only asks,
and never listens, is not heard any more. The caller always reads, and keeps no more than it has
asked for: if both sides stopped reading, neither would ever go on.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from weakref import WeakKeyDictionary

from opdispatch_wire.detached_tensors import MessagePieces
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.descriptors import PassedDescriptor, ReceivedDescriptors
from opdispatch_wire.lanes.frame_kind import HEADER, PADDING, FrameKind
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frames import FrameReader

# Unsent bytes at which reading stops, and at which it goes on.
HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
# A longer payload is not copied behind its header.
_JOINED_AT_MOST = 4096
# What one sendmsg is given; the system takes at most 1,024 pieces (IOV_MAX).
_PIECES_AT_ONCE = 512
# A peer that talks without end must not keep all others waiting.
_READS_PER_TURN = 4


class _Turn:
    """The state that the streams of one event loop share: see ``FrameStream.send``.

    ``corked`` are the streams that have sent something since one of them has begun to hand over the
    frames that it has read; None: no stream does so.
    """

    def __init__(self) -> None:
        self.corked: list[FrameStream] | None = None


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()

OnFrame = Callable[[FrameKind, "bytes | memoryview"], None]
OnEnd = Callable[[Exception | None], None]


class FrameStream:
    """One connection. Belongs to the event loop.

    ``on_frame`` is called with each frame. A WireError that it raises, or one of the peer's
    bytes, ends the stream, as the peer's end does: ``on_end`` is called with the error, or None,
    once, and not after ``close``. One that ``always_reads`` does so while its peer does not.
    ``on_drained`` is called when the peer has taken all that was to be sent.
    A callback that refuses a payload of so many bytes has called ``pause`` as well.
    """

    def __init__(
        self,
        connection: socket.socket,
        limit: int,
        on_frame: OnFrame,
        on_end: OnEnd,
        *,
        always_reads: bool = False,
        may_receive: Callable[[int], bool] = lambda size: True,
        on_drained: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_drained = on_drained
        self._reader = FrameReader(limit, may_receive)
        self._outbox: deque[bytes | bytearray | memoryview] = deque()
        # Those that go with pieces of the outbox, by the identity of the piece.
        self._passing: dict[int, PassedDescriptor] = {}
        self.descriptors: ReceivedDescriptors | None = None
        """Those that come with frames; None: they are closed on arrival."""
        self.unsent_bytes = 0
        # Whether something was sent in this turn of the loop: what follows in it goes together.
        self._is_corked = False
        self._turn = _TURNS.setdefault(self._loop, _Turn())
        self._is_writing = False  # the loop tells us when there is room
        self._is_reading = True
        self._always_reads = always_reads
        self._pauses = 0
        self._is_closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._is_closed

    @property
    def received_of_long(self) -> int:
        """See ``FrameReader.received_of_long``."""
        return self._reader.received_of_long

    def send(
        self,
        kind: FrameKind,
        payload: FramePayload,
        descriptor: PassedDescriptor | None = None,
    ) -> None:
        """Send a frame, or keep it until the peer takes it. After the end it is lost.

        What is not in one place is sent from where it is.

        The first frame of a turn of the loop is sent at once, all others of it together: when the
        frames that a stream has read are handed over, or else in the next turn.
        """
        if self._is_closed:
            return
        header = HEADER.pack(len(payload), kind, PADDING)
        if descriptor is not None:
            self._passing[id(header)] = descriptor
        if isinstance(payload, MessagePieces):
            self._outbox.append(header)
            self._outbox.extend(piece for piece in payload.parts if piece)
        elif descriptor is None and len(payload) <= _JOINED_AT_MOST:
            self._outbox.append(header + payload)
        else:
            self._outbox.append(header)
            self._outbox.append(payload)
        self.unsent_bytes += len(payload) + len(header)
        if self._is_corked or self._is_writing:
            if self.unsent_bytes > HIGH_WATER:
                self._update_reading()
            return
        self._is_corked = True
        if self._turn.corked is not None:
            self._turn.corked.append(self)
        else:
            self._loop.call_soon(self._uncork)
        self._flush()

    def detach(self) -> None:
        """Copy what has not been sent yet: its owners may change it from now on."""
        for place, piece in enumerate(self._outbox):
            if isinstance(piece, memoryview):
                self._outbox[place] = bytes(piece)

    def pause(self) -> None:
        """Read nothing more until ``resume``; calls add up."""
        self._pauses += 1
        self._update_reading()

    def resume(self) -> None:
        """Take one ``pause`` back."""
        self._pauses -= 1
        self._update_reading()

    def close(self) -> None:
        """Close the connection; what is unsent is lost. Idempotent."""
        if self._is_closed:
            return
        self._flush()
        if self._is_closed:
            return
        self._shut()

    def _shut(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._outbox.clear()
        self._passing.clear()
        self._socket.close()
        if self.descriptors is not None:
            self.descriptors.close()
        # No callback is called any more. The callbacks' owner refers to this stream: neither would
        # go before the garbage collector comes.
        self._on_frame, self._on_end = _ignore_frame, _ignore_end
        self._on_drained = _ignore_drained
        self._reader.close()

    def _end(self, error: Exception | None) -> None:
        if not self._is_closed:
            on_end = self._on_end
            self._shut()
            on_end(error)

    def _uncork(self) -> None:
        self._is_corked = False
        if self._outbox and not self._is_writing and not self._is_closed:
            self._flush()
            if not self._outbox:
                self._on_drained()

    def _flush(self) -> None:
        outbox = self._outbox
        try:
            while outbox:
                if self._passing:
                    self._send_up_to_descriptor()
                    continue
                if len(outbox) == 1:
                    self._took(self._socket.send(outbox[0]))
                    continue
                pieces = (
                    outbox if len(outbox) <= _PIECES_AT_ONCE else islice(outbox, _PIECES_AT_ONCE)
                )
                self._took(self._socket.sendmsg(pieces))
        except BlockingIOError:
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket, self._flush)
        except OSError:
            # The peer has gone. The sender has not noted yet what it sends.
            self._loop.call_soon(self._end, None)
            return
        else:
            if self._is_writing:
                self._is_writing = False
                self._loop.remove_writer(self._socket)
                self._on_drained()
        if not self._always_reads:
            self._update_reading()

    def _send_up_to_descriptor(self) -> None:
        """Send what stands before the next one, or that with its piece. Raises OSError."""
        first = self._outbox[0]
        descriptor = self._passing.get(id(first))
        if descriptor is not None:
            count = self._socket.sendmsg([first], descriptor.ancillary)
            del self._passing[id(first)]
        else:
            before = takewhile(lambda piece: id(piece) not in self._passing, self._outbox)
            count = self._socket.sendmsg(islice(before, _PIECES_AT_ONCE))
        self._took(count)

    def _took(self, count: int) -> None:
        """Forget bytes that were sent."""
        self.unsent_bytes -= count
        outbox = self._outbox
        if not self.unsent_bytes:
            outbox.clear()
            return
        while count:
            piece = outbox[0]
            if count < len(piece):
                outbox[0] = memoryview(piece)[count:]
                return
            count -= len(piece)
            outbox.popleft()
        while outbox and not outbox[0]:
            outbox.popleft()  # an empty payload

    def _update_reading(self) -> None:
        """Read, unless a pause was asked for, or the peer does not read."""
        if self._is_closed or self._always_reads:
            return
        water = LOW_WATER if not self._is_reading else HIGH_WATER
        wanted = not self._pauses and self.unsent_bytes <= water
        if wanted and not self._is_reading:
            self._loop.add_reader(self._socket, self._read)
            # Frames that are in the buffer already make the socket no more readable.
            self._loop.call_soon(self._take_frames)
        elif not wanted and self._is_reading:
            self._loop.remove_reader(self._socket)
        self._is_reading = wanted

    def _read(self) -> None:
        corked = self._turn.corked = []
        try:
            self._receive()
        finally:
            self._turn.corked = None
            for stream in corked:
                stream._uncork()

    def _receive(self) -> None:
        for _ in range(_READS_PER_TURN):
            if not self._is_reading or self._is_closed:
                return
            space = self._reader.space()
            try:
                if self.descriptors is None:
                    count = self._socket.recv_into(space)
                else:
                    count = self.descriptors.receive(self._socket, space)
            except BlockingIOError:
                return
            except OSError:
                count = 0
            except WireError as error:
                self._end(error)
                return
            if not count:
                cut = not self._reader.is_between_frames
                self._end(WireError("the lane ended in the middle of a frame") if cut else None)
                return
            self._reader.received(count)
            self._take_frames()
            if count < len(space):
                return  # that was all, or a descriptor has ended it: the loop tells of the rest

    def _take_frames(self) -> None:
        reader = self._reader
        try:
            while reader.is_ahead and self._is_reading and not self._is_closed:
                frame = reader.next_frame()
                if frame is None:
                    return
                self._on_frame(*frame)
        except WireError as error:
            self._end(error)


def _ignore_frame(kind: FrameKind, payload: bytes | memoryview) -> None:
    """No-op callback for frames, used after close."""


def _ignore_end(error: Exception | None) -> None:
    """No-op callback for the end, used after close."""


def _ignore_drained() -> None:
    """No-op callback for drained buffers, used after close."""
