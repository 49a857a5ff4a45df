"""Sending large tensors over a gRPC stream of calls: in chunks, between other messages.

    CallTensors       the large tensors of one call, and of its reply
    LargeMessage      the chunks of one message, and then the message itself
    MessageOutbox     messages of all sizes, none of which waits for all of a large one

A chunk is taken from the tensor in place when its turn comes: nothing is copied before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from opdispatch_wire.protobuf_fields import LENGTH_DELIMITED, field_tag, varint
from opdispatch_wire.v1 import execution_pb2

CHUNK_BYTES = 1024 * 1024
"""The tensor bytes in one chunk; smaller tensors are sent inline."""

BESIDE_BYTES = 64 * 1024
"""In a message above CHUNK_BYTES, larger tensors than this are handled outside it.

Protobuf copies more often, and blocks other threads meanwhile.
"""

CHUNK_BYTES_KEY = "opdispatch-chunk-bytes"
"""The metadata key of a stream, in both directions, for the most data bytes of a chunk."""

LARGE_AT_ONCE = 4
"""How many large messages of a stream are sent in turns; others wait for one of them to end."""

# A peer that wants shorter chunks gets none.
_SHORTEST_CHUNKS = 512
# How many small messages may be sent before the next chunk.
_SMALL_PER_CHUNK = 16
_CHUNK_TAG = field_tag(execution_pb2.CallRequest.CHUNK_FIELD_NUMBER, LENGTH_DELIMITED)
_DATA_TAG = field_tag(execution_pb2.Chunk.DATA_FIELD_NUMBER, LENGTH_DELIMITED)

Buffer = memoryview
"""The bytes of one tensor."""


class CallTensors:
    """The large tensors of one call, outside its messages. For the owner of the call."""

    def __init__(self, *, results_of_any_size: bool = True) -> None:
        self.results_of_any_size = results_of_any_size
        """Whether the caller accepts results outside messages, to which no limit then applies."""
        self.arguments: Sequence[Buffer] = []
        """The tensors of the CallRequest, by ChunkedData.number."""
        self.message_bytes = 0
        """The total length of those sent in the CallRequest itself, which count as part of it."""
        self.results: Sequence[Buffer] = []
        """The tensors of the CallReply."""

    def take_results(
        self, reply: execution_pb2.CallReply, results: Sequence[Buffer]
    ) -> execution_pb2.CallReply:
        """Take the large tensors received before the reply; return the reply to read."""
        self.results = results
        return reply

    def results_of(self, reply: execution_pb2.CallReply) -> Sequence[Buffer]:
        """Return the buffers sent with the reply.

        An error names no tensors: those received or placed before it belong to no reply.
        """
        return () if reply.HasField("error") else self.results

    def note_sent(self, count: int) -> None:
        """Count argument bytes handed to the network."""

    def note_received(self, count: int, total: int) -> None:
        """Count result bytes received, of ``total``."""


def chunk_bytes_for(limit: int) -> int:
    """Return the size of a chunk if no message may have more than ``limit`` bytes."""
    return max(min(CHUNK_BYTES, limit // 2), 1)


def chunk_metadata(limit: int) -> tuple[str, str]:
    """Return the metadata that lets the peer send chunks."""
    return CHUNK_BYTES_KEY, str(chunk_bytes_for(limit))


def told_chunk_bytes(metadata: Iterable[tuple[str, str | bytes]] | None, limit: int) -> int:
    """Return the chunk size that the peer accepts and that fits into ``limit``; 0 if none does."""
    for key, value in metadata or ():
        if key == CHUNK_BYTES_KEY and isinstance(value, str) and value.isdecimal():
            told = min(int(value[:12]), chunk_bytes_for(limit))
            return told if told >= _SHORTEST_CHUNKS else 0
    return 0


class LargeMessage:
    """One message with large tensors: its chunks, then the message. For use by its sender only.

    ``on_sent`` is called with the size of each chunk when the next one is requested.
    """

    def __init__(
        self,
        number: int,
        tensors: Sequence[Buffer],
        message: bytes,
        chunk_bytes: int,
        on_sent: Callable[[int], None] | None = None,
    ) -> None:
        self.number = number
        self.size = sum(len(tensor) for tensor in tensors)
        """The total size of its tensors."""
        self.is_dropped = False
        """Set by any thread when the message is no longer awaited; no further chunk follows.
        """
        self.is_finished = False
        """Whether the message itself has been taken."""
        self._pieces = self._cut(list(tensors), message, chunk_bytes, on_sent)

    def next_piece(self) -> bytes | None:
        """Return the next bytes to send; None if there are no more."""
        if not self.is_dropped and (piece := next(self._pieces, None)) is not None:
            return piece
        self._pieces.close()  # releases the tensors
        return None

    def _cut(
        self,
        tensors: list[memoryview],
        message: bytes,
        chunk_bytes: int,
        on_sent: Callable[[int], None] | None,
    ) -> Generator[bytes]:
        for number in range(len(tensors)):
            yield from self._cut_tensor(number, tensors[number], chunk_bytes, on_sent)
        tensors.clear()  # no longer needed, though this message is still to be sent
        self.is_finished = True
        yield message

    def _cut_tensor(
        self,
        number: int,
        contents: memoryview,
        chunk_bytes: int,
        on_sent: Callable[[int], None] | None,
    ) -> Iterator[bytes]:
        for offset in range(0, len(contents), chunk_bytes):
            data = contents[offset : offset + chunk_bytes]
            chunk = execution_pb2.Chunk(
                tensor=number, offset=offset, length=len(contents), total=self.size
            )
            yield encode_chunk(self.number, chunk, data)
            if on_sent is not None:
                on_sent(len(data))


def encode_chunk(number: int, chunk: execution_pb2.Chunk, data: bytes | memoryview) -> bytes:
    """Encode a CallRequest or CallReply with the id ``number`` and only a chunk of ``data``.

    Without protobuf, which would copy the data twice.
    """
    head = b"".join((chunk.SerializeToString(), _DATA_TAG, varint(len(data))))
    envelope = execution_pb2.CallRequest(id=number).SerializeToString()
    size = varint(len(head) + len(data))
    return b"".join((envelope, _CHUNK_TAG, size, head, data))


class LargeMessages:
    """The large messages of one stream, which take turns. For use by their sender only."""

    def __init__(self) -> None:
        self._in_turn: deque[LargeMessage] = deque()
        self._waiting: deque[LargeMessage] = deque()

    def __bool__(self) -> bool:
        return bool(self._in_turn)

    def add(self, message: LargeMessage) -> None:
        """Add a message to send."""
        (self._in_turn if len(self._in_turn) < LARGE_AT_ONCE else self._waiting).append(message)

    def next_piece(self) -> bytes | None:
        """Return the next piece of the message whose turn it is; None if none are left."""
        while self._in_turn:
            message = self._in_turn.popleft()
            piece = message.next_piece()
            if piece is not None:
                self._in_turn.append(message)
                return piece
            if self._waiting:
                self._in_turn.append(self._waiting.popleft())
        return None


class MessageOutbox:
    """A queue of messages of all sizes, for one sender in an event loop."""

    def __init__(self) -> None:
        self._small: deque[bytes] = deque()
        self._large = LargeMessages()
        self._since_chunk = 0
        self.small_bytes = 0
        """The total size of queued messages without chunks."""

    def put(self, message: bytes | LargeMessage) -> None:
        """Add a message to send."""
        if isinstance(message, LargeMessage):
            self._large.add(message)
        else:
            self._small.append(message)
            self.small_bytes += len(message)

    def next_piece(self) -> bytes | None:
        """Return the next bytes to send; None if there are none."""
        if self._small and (self._since_chunk < _SMALL_PER_CHUNK or not self._large):
            self._since_chunk += 1
        else:
            self._since_chunk = 0
            piece = self._large.next_piece()
            if piece is not None or not self._small:
                return piece
        message = self._small.popleft()
        self.small_bytes -= len(message)
        return message
