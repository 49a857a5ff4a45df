"""Calls by the RPC ``ExecutionService.Call``, one gRPC request each."""

from __future__ import annotations

import itertools
from typing import Any

import grpc

from opdispatch_client.rpcs import CALL
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import OnDone
from opdispatch_wire.message_size import serialize_message
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import execution_pb2


class UnaryCalls:
    """A lane that never breaks, because gRPC reconnects by itself. All tensors are inline.

    Thread-safe, as gRPC's channels are.
    """

    inline_bytes = None
    """See ``CallLane``."""
    is_connected = False
    """See ``CallLane``."""

    def __init__(self, channel: grpc.Channel, address: str, limit: int) -> None:
        self._address = address
        self.max_message_bytes = limit
        self._method: Any = channel.unary_unary(
            CALL, response_deserializer=execution_pb2.CallReply.FromString
        )
        self._numbers = itertools.count(1)
        self._under_way: dict[int, Any] = {}
        self.is_closed = False
        """Whether the lane has ended, so that calls on it fail."""

    def call(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        *,
        tensors: CallTensors | None = None,
    ) -> execution_pb2.CallReply:
        """Send a call and wait for the reply. Raises the error in its status."""
        payload = serialize_message(request, self.max_message_bytes, what)
        try:
            reply: execution_pb2.CallReply = self._method(payload, timeout=timeout)
        except (grpc.RpcError, ValueError) as error:
            raise self._error_of(error) from None
        return reply

    def begin(
        self,
        request: execution_pb2.CallRequest,
        timeout: float | None,
        what: str,
        on_done: OnDone,
        *,
        tensors: CallTensors | None = None,
    ) -> int:
        """Begin a call and return its id; see ``BlockingLane.begin``."""
        payload = serialize_message(request, self.max_message_bytes, what)
        number = next(self._numbers)

        def end(call: Any) -> None:
            if self._under_way.pop(number, None) is None:
                return  # cancelled
            try:
                on_done(call.result())
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                on_done(self._error_of(error))

        try:
            call = self._method.future(payload, timeout=timeout)
        except ValueError as error:
            raise self._error_of(error) from None
        self._under_way[number] = call
        call.add_done_callback(end)
        return number

    @property
    def calls_in_flight(self) -> int:
        """The number of calls begun by ``begin`` that wait for their replies."""
        return len(self._under_way)

    def flush(self) -> None:
        """Do nothing, because ``begin`` sends each call at once."""

    def cancel(self, number: int) -> bool:
        """Abandon a call that has begun; return False if it has ended already."""
        call = self._under_way.pop(number, None)
        if call is None:
            return False
        call.cancel()
        return True

    def close(self) -> None:
        """End the calls of ``begin``; closing the channel ends the others. Idempotent."""
        self.is_closed = True
        for call in list(self._under_way.values()):
            call.cancel()

    def _error_of(self, error: Exception) -> Exception:
        # gRPC raises ValueError if the channel is closed already.
        if self.is_closed:
            return LaneClosedError("the channel is closed")
        if isinstance(error, grpc.RpcError):
            return error_from_rpc(error, address=self._address)
        return error
