"""The large tensors of a lane's calls, in shared memory or in frames."""

from __future__ import annotations

from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES, CallTensors
from opdispatch_wire.detached_tensors import (
    CALL_REPLY,
    CALL_REQUEST,
    attach,
    detach,
)
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.message_size import (
    MAX_MESSAGE_BYTES_HIGHEST,
    RAISE_CALL_LIMIT_HINT,
    RAISE_LIMIT_HINT,
    check_size,
    parse_message,
    serialize_message,
)
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.v1 import execution_pb2, lane_pb2

# A tensor of fewer bytes counts as part of its message.
_LEAST_BYTES = 1024


class LaneTensors:
    """The large tensors of a lane's calls in flight, on the calling side.

    Any thread may use it, but only one at a time for each call.
    """

    def __init__(self, limit: int) -> None:
        self.max_message_bytes = limit
        """Longest call in bytes that the other side accepts, without large tensors."""
        self.max_call_bytes = limit
        """Longest call in bytes that the other side accepts, with large tensors."""
        self.memory: CallerLaneMemory | None = None
        """Memory shared with the other side; None if there is none."""
        # The tensors of calls that have them in frames, by id.
        self._beside: dict[int, CallTensors] = {}

    @property
    def inline_bytes(self) -> int:
        """Size in bytes up to which tensors should be inline; larger ones are sent uncopied."""
        return min(BESIDE_BYTES, self.max_message_bytes // 2)

    def welcomed(self, limit: int, welcome: lane_pb2.LaneWelcome) -> None:
        """Adopt the other side's limits; messages are also limited to ``limit`` bytes."""
        self.max_message_bytes = min(limit, welcome.max_message_bytes)
        self.max_call_bytes = max(self.max_message_bytes, welcome.max_call_bytes)

    def begin(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        memory: CallerMemory | None = None,
        tensors: CallTensors | None = None,
    ) -> FramePayload:
        """Return the frame payload for a call that has its id.

        Its tensors in ``memory`` are held from now on. Large ones in ``tensors`` are sent without a
        copy, and those of the reply are put there, too. Raises MessageTooLargeError, which names
        the call ``what``, and WireError for a request that refers to other tensors.
        """
        if tensors is not None:
            return self._attach(request, tensors, what)
        if self.memory is None or memory is None:
            return self._serialize(request, what)
        self.memory.begin(request, memory)
        try:
            return self._serialize(request, what)
        except BaseException:
            self.memory.never_sent(request.id)
            raise

    def never_sent(self, number: int) -> None:
        """Forget the call with that id, which was not sent after all, and release its memory."""
        self.forget(number)
        if self.memory is not None:
            self.memory.never_sent(number)

    def read_reply(self, payload: bytes | memoryview) -> execution_pb2.CallReply:
        """Parse the reply in a frame without copying its large tensors. Raises WireError."""
        reply = execution_pb2.CallReply()
        if len(payload) > CHUNK_BYTES and self._beside:
            small, results = detach(payload, CALL_REPLY, BESIDE_BYTES)
            parse_message(reply, small)
            tensors = self._beside.pop(reply.id, None)
            if tensors is not None:
                return tensors.take_results(reply, results)
            reply.Clear()
        parse_message(reply, payload)
        self._beside.pop(reply.id, None)
        return reply

    def forget(self, number: int) -> None:
        """Forget the call with that id, whose reply has come or is no longer awaited."""
        self._beside.pop(number, None)

    def end(self) -> None:
        """Abandon the memory of all calls. Must be called before any call gets its error."""
        if self.memory is not None:
            self.memory.end()
        self._beside.clear()

    def _serialize(self, request: execution_pb2.CallRequest, what: str) -> bytes:
        """Serialize a request with its inline tensors, and check its size."""
        payload = serialize_message(request, MAX_MESSAGE_BYTES_HIGHEST, what)
        if len(payload) > self.max_message_bytes:
            self._check_whole(len(payload), what)
            message, _ = detach(payload, CALL_REQUEST, _LEAST_BYTES)
            check_size(len(message), self.max_message_bytes, what)
        return payload

    def _check_whole(self, size: int, what: str) -> None:
        is_apart = self.max_call_bytes > self.max_message_bytes
        hint = RAISE_CALL_LIMIT_HINT if is_apart else RAISE_LIMIT_HINT
        check_size(size, self.max_call_bytes, what, hint)

    def _attach(
        self, request: execution_pb2.CallRequest, tensors: CallTensors, what: str
    ) -> FramePayload:
        message = self._serialize(request, what)  # small tensors are inline
        payload: FramePayload = message
        if tensors.arguments:
            payload = attach(message, CALL_REQUEST, tensors.arguments, aligned=True)
            self._check_whole(len(payload), what)
        self._beside[request.id] = tensors
        return payload


class TensorLane:
    """Base of the calling side of a lane: the part that handles the tensors of its calls."""

    def __init__(self, limit: int) -> None:
        """Start with ``limit`` as the longest call, until the other side has sent its limits."""
        self._tensors = LaneTensors(limit)
        self.memory: CallerLaneMemory | None = None
        """Memory shared with the other side; None if there is none."""

    @property
    def max_message_bytes(self) -> int:
        """Longest request in bytes that the other side accepts, without its large tensors."""
        return self._tensors.max_message_bytes

    @property
    def inline_bytes(self) -> int:
        """Size in bytes up to which tensors should be inline; larger ones are sent uncopied."""
        return self._tensors.inline_bytes
