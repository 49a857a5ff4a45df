"""``opdispatch.v1.ExecutionService`` of the daemon: decode nothing, ask the router."""

from __future__ import annotations

from collections.abc import AsyncIterator

from opdispatch_server.call_context import CallContext
from opdispatch_server.call_router import CallRouter
from opdispatch_server.call_stream import CallStream
from opdispatch_server.status_answers import Context, abort_with_status, answers
from opdispatch_server.values.value_leases import ValueLeases
from opdispatch_wire.chunk_assembler import TensorBudget
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2


class ExecutionServicer(execution_pb2_grpc.ExecutionServiceServicer):
    """The wire's side of CallRouter."""

    def __init__(
        self, router: CallRouter, leases: ValueLeases, limit: int, max_call_bytes: int
    ) -> None:
        """``limit`` is for a message; ``max_call_bytes``, for large tensors of one connection."""
        self._router = router
        self._leases = leases
        self._limit = limit
        self._max_call_bytes = max_call_bytes
        self._budget = TensorBudget(2 * max_call_bytes, "the large tensors of all connections")

    @answers
    async def Call(  # noqa: N802
        self, request: execution_pb2.CallRequest, context: Context
    ) -> execution_pb2.CallReply:
        """Calls one operator."""
        reply = await self._router.call(request, CallContext.of(context))
        if reply.HasField("error"):
            await abort_with_status(context, reply.error)
        return reply

    @answers
    async def CallStream(  # noqa: N802
        self, requests: AsyncIterator[execution_pb2.CallRequest], context: Context
    ) -> None:
        """Calls operators, many at a time."""
        budget = TensorBudget(
            self._max_call_bytes, "the large tensors of this connection", self._budget
        )
        await CallStream(self._router, context, budget, self._limit).serve(requests)

    @answers
    async def HoldValues(  # noqa: N802
        self, requests: AsyncIterator[remote_pb2.HoldValuesRequest], context: Context
    ) -> None:
        """Holds a client's values."""
        await self._leases.serve(requests, context)
