"""Send and receive a lane's frames in an event loop, with bounded memory.

The called side stops reading while the caller does not accept its replies, so that a caller which
never reads cannot fill its memory. The caller always reads, since its calls bound what it receives:
if both sides could stop reading, they could deadlock.
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

# Unsent bytes at which reading stops, and at which it resumes.
HIGH_WATER = 4 * 1024 * 1024
LOW_WATER = 1024 * 1024
# Up to this size in bytes, a payload is joined with its header.
_JOINED_AT_MOST = 4096
# Buffers per sendmsg; the system accepts at most 1,024 (IOV_MAX).
_PIECES_AT_ONCE = 512
# Reads per iteration of the loop, so that a peer that never stops sending cannot block it.
_READS_PER_TURN = 4


class _Turn:
    """The state that the streams of one event loop share: see ``FrameStream.send``.

    While a stream passes on the frames that it has read, ``corked`` has the streams that have sent
    something since then; otherwise it is None.
    """

    def __init__(self) -> None:
        self.corked: list[FrameStream] | None = None


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = WeakKeyDictionary()

OnFrame = Callable[[FrameKind, "bytes | memoryview"], None]
OnEnd = Callable[[Exception | None], None]


class FrameStream:
    """One connection. For use in its event loop only.

    ``on_frame`` is called with each frame. The stream ends if the peer closes the connection or
    sends malformed bytes, or if ``on_frame`` raises an error: ``on_end`` is then called once, with
    a WireError or None, but not after ``close``. With ``always_reads``, it reads even while the
    peer does not. ``on_drained`` is called when everything has been sent. If ``may_receive``
    refuses a payload of that many bytes, it has to call ``pause`` as well.
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
        # Descriptors to send with pieces of the outbox, by the id of the piece.
        self._passing: dict[int, PassedDescriptor] = {}
        self.descriptors: ReceivedDescriptors | None = None
        """Receives the descriptors of frames; if None, they are closed on arrival."""
        self.unsent_bytes = 0
        # Whether a frame was sent in this iteration of the loop; later ones are sent together.
        self._is_corked = False
        self._turn = _TURNS.setdefault(self._loop, _Turn())
        self._is_writing = False  # waiting for the loop to report that the socket is writable
        self._is_reading = True
        self._always_reads = always_reads
        self._pauses = 0
        self._is_closed = False
        connection.setblocking(False)
        self._loop.add_reader(connection, self._read)

    @property
    def is_closed(self) -> bool:
        """Whether the stream has ended, so that nothing can be sent."""
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
        """Send a frame, or buffer it until the peer accepts it. After the end, it is dropped.

        The first frame in an iteration of the loop is sent at once. The others are sent together:
        when a stream has passed on the frames that it has read, or else in the next iteration. A
        payload in pieces is sent without a copy.
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
        """Copy all unsent bytes, so that the owners of the arrays may change them."""
        for place, piece in enumerate(self._outbox):
            if isinstance(piece, memoryview):
                self._outbox[place] = bytes(piece)

    def pause(self) -> None:
        """Stop reading until ``resume`` has been called as often as ``pause``."""
        self._pauses += 1
        self._update_reading()

    def resume(self) -> None:
        """Undo one ``pause``."""
        self._pauses -= 1
        self._update_reading()

    def close(self) -> None:
        """Close the connection; bytes that cannot be sent at once are lost. Idempotent."""
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
        # The callbacks' owner refers to this stream. Dropping them breaks the cycle, so that both
        # are freed without the garbage collector.
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
            # The peer has gone. Called later, because ``send``'s caller may not have recorded the
            # call that it is sending.
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
        """Send the pieces before the next descriptor, or that with its piece. Raises OSError."""
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
        """Remove ``count`` sent bytes from the outbox."""
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
        """Start or stop reading, depending on pauses and on whether the peer reads."""
        if self._is_closed or self._always_reads:
            return
        water = LOW_WATER if not self._is_reading else HIGH_WATER
        wanted = not self._pauses and self.unsent_bytes <= water
        if wanted and not self._is_reading:
            self._loop.add_reader(self._socket, self._read)
            # Frames that are buffered already do not make the socket readable.
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
                self._end(WireError("the lane was closed within a frame") if cut else None)
                return
            self._reader.received(count)
            self._take_frames()
            if count < len(space):
                return  # nothing is left, or a descriptor ended the read; the loop will call again

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
        except BaseException:
            # Its frame is lost, and for its answer the peer would wait for ever.
            self._end(WireError("a frame could not be processed"))
            raise


def _ignore_frame(kind: FrameKind, payload: bytes | memoryview) -> None:
    """No-op callback for frames, used after close."""


def _ignore_end(error: Exception | None) -> None:
    """No-op callback for the end, used after close."""


def _ignore_drained() -> None:
    """No-op callback for drained buffers, used after close."""
