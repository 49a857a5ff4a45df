"""The large tensors of the calls of a gRPC stream, on the calling side."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc

from opdispatch_wire.chunks import (
    CallTensors,
    LargeMessage,
    chunk_bytes_for,
    chunk_metadata,
    told_chunk_bytes,
)
from opdispatch_wire.credentials import AUTHORIZATION
from opdispatch_wire.detached_tensors import InlineTensors, without_large
from opdispatch_wire.lanes.chunk_assembler import ChunkAssembler, TensorBudget
from opdispatch_wire.lanes.lane_messages import LaneClosedError, NotAdmittedError
from opdispatch_wire.lanes.stream_lane import StreamLane
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_KEY, check_size, serialize_message
from opdispatch_wire.v1 import execution_pb2

CALL_STREAM = "/opdispatch.v1.ExecutionService/CallStream"
"""The method's name on the wire."""

RESULTS_LIMIT = 2**63 - 1
"""Limit on the bytes of results that a caller receives at a time: none, as it asked for them."""

_REFUSALS = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))

Send = Callable[[bytes | LargeMessage], None]


def shown(authorization: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata for an authorization; empty for an empty one."""
    return ((AUTHORIZATION, authorization),) if authorization else ()


def closed_error(code: grpc.StatusCode | None, why: str) -> LaneClosedError:
    """Return the error for a stream that ended with that status code."""
    return NotAdmittedError(why) if code in _REFUSALS else LaneClosedError(why)


class StreamTensors:
    """The large tensors of a stream's calls in flight: split into chunks, and reassembled.

    A call is in ``_calls`` from ``begin`` to ``forget``, and in ``_large`` while its tensors may
    still be sent. Any thread may begin and forget calls; only the thread or event loop that reads
    the stream processes chunks and replies, and adds to ``_assembler``.
    """

    def __init__(self, limit: int, send: Send) -> None:
        """Take the size limit of messages in bytes, and ``send``, which sends cancellations."""
        self.max_message_bytes = limit
        self._send = send
        self._chunk_bytes = 0
        self._calls: dict[int, CallTensors] = {}
        self._large: dict[int, LargeMessage] = {}
        self._assembler = ChunkAssembler(TensorBudget(RESULTS_LIMIT, "the results of the stream"))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata that announces the limits of this side."""
        limit = self.max_message_bytes
        return ((MAX_MESSAGE_BYTES_KEY, str(limit)), chunk_metadata(limit))

    @property
    def inline_bytes(self) -> int | None:
        """Size in bytes up to which tensors are inline; None if all have to be."""
        return chunk_bytes_for(self.max_message_bytes) if self._chunk_bytes else None

    def welcomed(self, told: Iterable[tuple[str, str | bytes]]) -> None:
        """Adopt the other side's limits."""
        self._chunk_bytes = told_chunk_bytes(told, self.max_message_bytes)

    def begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> bytes | LargeMessage:
        """Return the message to send for a call that has its id.

        Without ``tensors``, all are inline, and the large ones are taken out of the request. Raises
        MessageTooLargeError, which names the call ``what``; the call is then forgotten.
        """
        if tensors is None:
            payload, tensors = without_large(request, self._chunk_bytes)
            check_size(len(payload), self.max_message_bytes, what)
        else:
            payload = serialize_message(request, self.max_message_bytes, what)
        number = request.id
        self._calls[number] = tensors
        if not tensors.arguments:
            return payload
        large = self._large[number] = LargeMessage(
            number, tensors.arguments, payload, self._chunk_bytes, tensors.note_sent
        )
        return large

    def expect_inline(self, number: int) -> None:
        """Make sure that an awaited call can receive chunks; inline if it began without tensors."""
        self._calls.setdefault(number, InlineTensors())

    def take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        """Process a chunk of a call's results.

        Raises WireError for an unexpected chunk, and another OpdispatchError if there is not enough
        memory.
        """
        tensors = self._calls.get(number)
        if tensors is None:
            return  # no longer awaited
        self._assembler.take(number, chunk)
        tensors.note_received(len(chunk.data), chunk.total)
        if number not in self._calls:  # ``forget`` ran meanwhile, before the chunk was added
            self._assembler.drop(number)

    def read_reply(self, reply: execution_pb2.CallReply) -> execution_pb2.CallReply:
        """Return a received reply with its large tensors.

        Raises WireError if some of them have not been received before it.
        """
        results = self._assembler.finish(reply.id)
        tensors = self._calls.get(reply.id)
        return reply if tensors is None else tensors.take_results(reply, results)

    def forget(self, number: int) -> None:
        """Forget the call with that id, whose reply has come or is no longer awaited.

        Drops tensors that are partly sent or received.
        """
        self._calls.pop(number, None)
        self._assembler.drop(number)
        large = self._large.pop(number, None)
        if large is not None and not large.is_finished:
            large.is_dropped = True
            self.send_cancel(number)  # the other side must not wait for the rest

    def send_cancel(self, number: int) -> None:
        """Send the cancellation of a call."""
        self._send(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())

    def end(self) -> None:
        """Forget all calls, because no more replies will come. Called by the reader."""
        for number in list(self._calls):
            self.forget(number)
        self._assembler.clear()


class TensorStream:
    """Base of the calling side of a stream: the identity of the peer, and the tensors of calls."""

    memory = None
    """None: streams share no memory."""

    def __init__(self, limit: int, send: Send) -> None:
        """Take the size limit of messages in bytes, and ``send``, which sends cancellations."""
        self.peer = StreamLane()
        """The peer at the other end."""
        self._tensors = StreamTensors(limit, send)

    @property
    def max_message_bytes(self) -> int:
        """Longest message in bytes that either side accepts."""
        return self._tensors.max_message_bytes

    @property
    def inline_bytes(self) -> int | None:
        """Size in bytes up to which tensors are inline; None if all have to be."""
        return self._tensors.inline_bytes

    @property
    def number(self) -> int:
        """The interpreter's number for this stream; 0 if the other side is not an interpreter."""
        return self.peer.number

    def _welcomed(self, told: tuple[tuple[str, str | bytes], ...]) -> None:
        """Adopt the other side's identity and limits, once it has accepted the stream."""
        self._tensors.welcomed(told)
        self.peer = StreamLane.told(told)
