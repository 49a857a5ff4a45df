"""Send the replies of a lane, several at once where possible, with their tensors."""

from __future__ import annotations

import logging
import time

from opdispatch.errors import OpdispatchError
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.lane_pace import LanePace
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frame_writer import FrameWriter
from opdispatch_wire.lanes.lane_memory import CalleeLaneMemory
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.shared_memory.call_memory import CalleeMemory, PlacedTensors
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.lane")

# A reply waits for others to be sent with it at most as long as so many calls take to begin.
_GATHERING = 16


class LaneReplies:
    """Sends the replies of one lane, several at once if they follow closely. Thread-safe."""

    def __init__(self, writer: FrameWriter, execution: KernelExecution, pace: LanePace) -> None:
        self._writer = writer
        self._execution = execution
        self._pace = pace
        self._gathering_since = 0.0
        self.limit = MAX_MESSAGE_BYTES_HIGHEST
        """Longest reply in bytes that the other side accepts."""
        self.memory: CalleeLaneMemory | None = None
        """Memory shared with the other side; None if there is none."""

    def send(
        self,
        reply: execution_pb2.CallReply,
        placed: PlacedTensors | None = None,
        tensors: CalleeTensors | None = None,
    ) -> None:
        """Send a reply, or buffer it for a moment in which others may follow.

        Tensors ``placed`` in shared memory belong to the caller from then on; ``tensors`` are sent
        outside the message. If the reply is too long, the error is sent in its place.
        """
        payload: FramePayload
        try:
            payload = self._execution.serialize(reply, self.limit, tensors)
            if self.memory is not None and placed is not None and placed.held:
                self.memory.hold(placed)
        except OpdispatchError as error:
            payload = failure(reply, error).SerializeToString()
        self.put(payload)

    def send_with(
        self, reply: execution_pb2.CallReply, memory: CalleeMemory | CalleeTensors | None
    ) -> None:
        """Send a reply with its tensors."""
        if isinstance(memory, CalleeMemory) and self.memory is not None:
            self.memory.end_call(reply, memory)
            self.send(reply, memory.placed)
        else:
            self.send(reply, tensors=memory if isinstance(memory, CalleeTensors) else None)

    def put(self, payload: FramePayload) -> None:
        """Send a serialized reply, or buffer it for a moment."""
        self._writer.put(FrameKind.REPLY, payload)
        now = time.monotonic()
        if not self._gathering_since:
            self._gathering_since = now
        elif now - self._gathering_since > _GATHERING * self._pace.beginning:
            self.flush()

    def flush(self) -> None:
        """Send the buffered replies."""
        self._gathering_since = 0.0
        self._writer.flush()


def failure(
    call: execution_pb2.CallRequest | execution_pb2.CallReply, error: BaseException
) -> execution_pb2.CallReply:
    """Return the reply to a call that failed with ``error``."""
    return execution_pb2.CallReply(id=call.id, error=status_from_error(error))


def failure_of_run(
    request: execution_pb2.CallRequest, error: BaseException
) -> execution_pb2.CallReply:
    """Return the reply to a call that failed with ``error``; log errors that are not ours."""
    if not isinstance(error, OpdispatchError):
        LOG.error(
            "the call of %s failed",
            request.operator,
            exc_info=error,
            extra=fields(Event.INTERNAL_ERROR, operator=request.operator, call=request.id),
        )
    return failure(request, error)
