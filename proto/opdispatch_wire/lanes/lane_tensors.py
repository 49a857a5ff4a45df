"""Where the large tensors of a lane's calls are: in memory that is shared, or in its frames."""

from __future__ import annotations

from opdispatch_wire.channel import (
    MAX_MESSAGE_BYTES_HIGHEST,
    RAISE_CALL_LIMIT_HINT,
    RAISE_LIMIT_HINT,
    check_size,
    parse_message,
    serialize_message,
)
from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES, CallTensors
from opdispatch_wire.detached_tensors import (
    CALL_REPLY,
    CALL_REQUEST,
    attach,
    detach,
)
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.v1 import execution_pb2, lane_pb2

# A shorter tensor counts as part of its message.
_LEAST_BYTES = 1024


class LaneTensors:
    """Those of the calls that are under way, as their callers have them.

    Any thread may use it; one at a time for each call.
    """

    def __init__(self, limit: int) -> None:
        self.max_message_bytes = limit
        """The longest call that the other side takes, in bytes, ..."""
        self.max_call_bytes = limit
        """... and the longest one with its large tensors."""
        self.memory: CallerLaneMemory | None = None
        """Memory shared with the other side; None if there is none."""
        # Of calls whose large tensors are in frames, by id.
        self._beside: dict[int, CallTensors] = {}

    @property
    def inline_bytes(self) -> int:
        """How long tensors should be in a message; longer ones are sent from where they are."""
        return min(BESIDE_BYTES, self.max_message_bytes // 2)

    def welcomed(self, limit: int, welcome: lane_pb2.LaneWelcome) -> None:
        """Take the other side's limits; of messages, we accept no more than ``limit`` bytes."""
        self.max_message_bytes = min(limit, welcome.max_message_bytes)
        self.max_call_bytes = max(self.max_message_bytes, welcome.max_call_bytes)

    def begin(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        memory: CallerMemory | None = None,
        tensors: CallTensors | None = None,
    ) -> FramePayload:
        """Return the frame to send for a call that has an id.

        What it has in ``memory`` is held from now on. Large tensors that are in ``tensors``, as
        those of its reply will be, are sent from where they are. Raises MessageTooLargeError,
        which says ``what`` is, and WireError for a request that refers to other tensors.
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
        """Forget the call of that id, which was begun and is not sent."""
        self.forget(number)
        if self.memory is not None:
            self.memory.never_sent(number)

    def read_reply(self, payload: bytes | memoryview) -> execution_pb2.CallReply:
        """Return the reply in a frame; its large tensors stay where they are. Raises WireError."""
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
        """Forget the call of that id: its reply has come, or is not awaited any more."""
        self._beside.pop(number, None)

    def end(self) -> None:
        """End the tensors of all calls, before any call gets its error.

        Those in memory are abandoned.
        """
        if self.memory is not None:
            self.memory.end()
        self._beside.clear()

    def _serialize(self, request: execution_pb2.CallRequest, what: str) -> bytes:
        """Serialize a request, with the tensors that are in it."""
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
        message = self._serialize(request, what)  # some may be in it, too
        payload: FramePayload = message
        if tensors.arguments:
            payload = attach(message, CALL_REQUEST, tensors.arguments, aligned=True)
            self._check_whole(len(payload), what)
        self._beside[request.id] = tensors
        return payload


class TensorLane:
    """The calling side of a lane, as far as it is about the tensors of its calls."""

    def __init__(self, limit: int) -> None:
        """Start with ``limit`` as the longest call, until the other side has said more."""
        self._tensors = LaneTensors(limit)
        self.memory: CallerLaneMemory | None = None
        """Memory shared with the other side; None if there is none."""

    @property
    def max_message_bytes(self) -> int:
        """The longest request that the other side takes, in bytes, without its large tensors."""
        return self._tensors.max_message_bytes

    @property
    def inline_bytes(self) -> int:
        """How long tensors should be in a message; longer ones are sent from where they are."""
        return self._tensors.inline_bytes
