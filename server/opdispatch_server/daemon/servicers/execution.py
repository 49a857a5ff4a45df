"""The daemon's ``opdispatch.v1.ExecutionService``: passes undecoded requests to the router."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from opdispatch_server.access.authentication import CALLER
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.roles import Role
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.joined_interpreters import JoinedInterpreterCalls
from opdispatch_server.daemon.calls.quotas import Quotas
from opdispatch_server.daemon.calls.router import CallRouter
from opdispatch_server.daemon.servicers.hold_values import ValueLeases
from opdispatch_server.metrics.client_calls import (
    ClientConnection,
    process_client_calls,
    remote_client,
)
from opdispatch_server.serving.call_protocols import CallRunner
from opdispatch_server.serving.call_stream import CallStream
from opdispatch_server.serving.status_answers import Context, StatusError, answers
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.detached_tensors import CALL_REPLY, attach
from opdispatch_wire.lanes.chunk_assembler import TensorBudget
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, serialize_message
from opdispatch_wire.received_call import ReceivedCall
from opdispatch_wire.v1 import execution_pb2, execution_pb2_grpc, remote_pb2


class ExecutionServicer(execution_pb2_grpc.ExecutionServiceServicer):
    """The gRPC adapter of CallRouter."""

    def __init__(
        self,
        router: CallRouter,
        quotas: Quotas,
        is_running: Callable[[int], bool],
        leases: ValueLeases,
        limit: int,
        max_call_bytes: int,
    ) -> None:
        """Serve calls.

        ``is_running`` says whether a kernel is running, by the number of its run. ``limit`` bounds
        a message, ``max_call_bytes`` the large tensors of one connection.
        """
        self._router = router
        self._quotas = quotas
        self._is_running = is_running
        self._leases = leases
        self._limit = limit
        self._max_call_bytes = max_call_bytes
        self._budget = TensorBudget(2 * max_call_bytes, "the large tensors of all connections")

    def runner_for(self, identity: Identity) -> CallRunner[Any]:
        """Return the runner for the calls of an identity, within its role and its quota."""
        if identity.role is Role.WORKER:
            return JoinedInterpreterCalls(identity, self._router, self._is_running)
        return self._quotas.runner_for(identity, self._router)

    @answers
    async def Call(  # noqa: N802
        self, received: ReceivedCall, context: Context
    ) -> execution_pb2.CallReply | bytes:
        """Call one operator."""
        if received.refusal is not None:
            raise received.refusal
        tensors = CallTensors(results_of_any_size=False)
        tensors.arguments = received.arguments
        tensors.message_bytes = sum(map(len, received.arguments))
        call = CallContext.of(context).with_tensors(tensors)
        client = _client_of(context)
        client.calls = int(not call.is_from_kernel)
        process_client_calls().end(client)
        reply = await self.runner_for(CALLER.get()).call(received.request, call)
        if reply.HasField("error"):
            raise StatusError(reply.error)
        if not tensors.results:
            return reply
        # They stay in the buffer in which they arrived, and are copied only once.
        payload = serialize_message(reply, MAX_MESSAGE_BYTES_HIGHEST, "the result of the call")
        return b"".join(attach(payload, CALL_REPLY, tensors.results).parts)

    @answers
    async def CallStream(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: Context
    ) -> None:
        """Call operators, many at a time."""
        budget = TensorBudget(
            self._max_call_bytes, "the large tensors of this connection", self._budget
        )
        runner = self.runner_for(CALLER.get())
        client = _client_of(context)
        stream = CallStream(runner, context, budget, self._limit, client=client)
        try:
            await stream.serve(requests)
        finally:
            process_client_calls().end(client)

    @answers
    async def HoldValues(  # noqa: N802
        self, requests: AsyncIterator[remote_pb2.HoldValuesRequest], context: Context
    ) -> None:
        """Hold a client's values."""
        caller = CALLER.get()
        with self._quotas.session(caller):
            await self._leases.serve(requests, context, self._quotas.values_of(caller))


def _client_of(context: Context) -> ClientConnection:
    identity = CALLER.get()
    name = identity.name if identity.token else ""
    return process_client_calls().begin(remote_client(name, context.peer() or ""))
