"""The large tensors of the calls of a gRPC stream, on the calling side."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import grpc

from opdispatch_wire.channel import MAX_MESSAGE_BYTES_KEY, check_size, serialize_message
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
from opdispatch_wire.v1 import execution_pb2

CALL_STREAM = "/opdispatch.v1.ExecutionService/CallStream"
"""The method's name on the wire."""

RESULTS_LIMIT = 2**63 - 1
"""The bytes of results that a caller takes at a time: it has asked for them."""

_REFUSALS = frozenset((grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED))

Send = Callable[[bytes | LargeMessage], None]


def shown(authorization: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata that have an authorization; none for an empty one."""
    return ((AUTHORIZATION, authorization),) if authorization else ()


def closed_error(code: grpc.StatusCode | None, why: str) -> LaneClosedError:
    """Return the error of a stream that could not be opened, and ended with a status."""
    return NotAdmittedError(why) if code in _REFUSALS else LaneClosedError(why)


class StreamTensors:
    """Those of the calls that are under way: cut into chunks, and put together again.

    A call is in ``_calls`` from ``begin`` to ``forget``, and in ``_large`` as well while its
    tensors may be on their way out. Any thread may begin and forget calls; only the one that
    reads the stream, or the event loop, takes what comes, and adds to ``_assembler``.
    """

    def __init__(self, limit: int, send: Send) -> None:
        """Hold the longest message that either side takes; ``send`` takes cancellations."""
        self.max_message_bytes = limit
        self._send = send
        self._chunk_bytes = 0
        self._calls: dict[int, CallTensors] = {}
        self._large: dict[int, LargeMessage] = {}
        self._assembler = ChunkAssembler(TensorBudget(RESULTS_LIMIT, "the results of the stream"))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata that tells the other side the limits of this one."""
        limit = self.max_message_bytes
        return ((MAX_MESSAGE_BYTES_KEY, str(limit)), chunk_metadata(limit))

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes no chunks."""
        return chunk_bytes_for(self.max_message_bytes) if self._chunk_bytes else None

    def welcomed(self, told: Iterable[tuple[str, str | bytes]]) -> None:
        """Take the other side's limits."""
        self._chunk_bytes = told_chunk_bytes(told, self.max_message_bytes)

    def begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> bytes | LargeMessage:
        """Return the message to send for a call that has an id.

        Without ``tensors`` they are in the request, and the large ones are taken out of it.
        Raises MessageTooLargeError, which says ``what`` is; nothing is left of the call then.
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
        """Expect the results of a call that is awaited, inline if it has begun without tensors."""
        self._calls.setdefault(number, InlineTensors())

    def take_chunk(self, number: int, chunk: execution_pb2.Chunk) -> None:
        """Take a chunk of the results of a call.

        Raises WireError for one that cannot have, and another OpdispatchError if there is no
        memory for it.
        """
        tensors = self._calls.get(number)
        if tensors is None:
            return  # not awaited any more
        self._assembler.take(number, chunk)
        tensors.note_received(len(chunk.data), chunk.total)
        if number not in self._calls:  # given up meanwhile, and not seen there yet
            self._assembler.drop(number)

    def read_reply(self, reply: execution_pb2.CallReply) -> execution_pb2.CallReply:
        """Return a reply that has come itself, as its caller is to read it.

        Raises WireError if its tensors have not all come before it.
        """
        results = self._assembler.finish(reply.id)
        tensors = self._calls.get(reply.id)
        return reply if tensors is None else tensors.take_results(reply, results)

    def forget(self, number: int) -> None:
        """Forget the call of that id, whose reply has come or is not awaited any more.

        Drop what is half sent and half received.
        """
        self._calls.pop(number, None)
        self._assembler.drop(number)
        large = self._large.pop(number, None)
        if large is not None and not large.is_finished:
            large.is_dropped = True
            self.send_cancel(number)  # the other side must not wait for the rest

    def send_cancel(self, number: int) -> None:
        """Cancel a call: its reply is not awaited any more."""
        self._send(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())

    def end(self) -> None:
        """End all calls: no reply comes any more. Called by the reader."""
        for number in list(self._calls):
            self.forget(number)
        self._assembler.clear()


class TensorStream:
    """The calling side of a stream, as far as it is about who is at the other end, and the tensors
    of its calls.
    """

    memory = None
    """None is shared with the other side."""

    def __init__(self, limit: int, send: Send) -> None:
        """Hold the longest message that either side takes, in bytes."""
        self.peer = StreamLane()
        """The peer at the other end."""
        self._tensors = StreamTensors(limit, send)

    @property
    def max_message_bytes(self) -> int:
        """The longest message that either side takes, in bytes."""
        return self._tensors.max_message_bytes

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes no chunks."""
        return self._tensors.inline_bytes

    @property
    def number(self) -> int:
        """Number by which an interpreter knows this stream; 0 if the other side is none."""
        return self.peer.number

    def _welcomed(self, told: tuple[tuple[str, str | bytes], ...]) -> None:
        """Take the other side's identity and limits: it has opened the stream."""
        self._tensors.welcomed(told)
        self.peer = StreamLane.told(told)
