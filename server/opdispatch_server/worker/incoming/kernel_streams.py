"""An interpreter's gRPC streams under one set of rules: the daemon's, or those for clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from opdispatch_server.metrics.client_calls import process_client_calls, remote_client
from opdispatch_server.serving.call_stream import CallStream
from opdispatch_server.serving.calls_in_flight import CALLS_IN_FLIGHT
from opdispatch_server.serving.status_answers import Context, answers
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.kernel_threads import KernelThreads
from opdispatch_server.worker.incoming.stream_calls import StreamCalls
from opdispatch_wire.lanes.chunk_assembler import TensorBudget
from opdispatch_wire.lanes.stream_lane import StreamLane
from opdispatch_wire.v1 import execution_pb2_grpc


class KernelStreams(execution_pb2_grpc.ExecutionServiceServicer):
    """``opdispatch.v1.ExecutionService`` of an interpreter. For use in the event loop only."""

    def __init__(
        self,
        execution: KernelExecution,
        rules: CallRules,
        threads: KernelThreads,
        limit: int,
        max_call_bytes: int = sys.maxsize,
        at_once: int = CALLS_IN_FLIGHT,
    ) -> None:
        """Serve streams.

        ``limit`` bounds a message in bytes, ``max_call_bytes`` the large tensors of one stream, and
        ``at_once`` the number of its calls in flight.
        """
        self._execution = execution
        self._rules = rules
        self._threads = threads
        self._limit = limit
        self._max_call_bytes = max_call_bytes
        self._at_once = at_once
        self._budget = TensorBudget(2 * max_call_bytes, "the large tensors of all connections")
        self._streams: set[CallStream] = set()

    async def finish(self, patience: float) -> None:
        """Wait until all calls are answered, but at most ``patience`` seconds."""
        if finishing := [asyncio.create_task(stream.finish()) for stream in self._streams]:
            _, unfinished = await asyncio.wait(finishing, timeout=patience)
            for task in unfinished:
                task.cancel()

    @answers
    async def CallStream(  # noqa: N802
        self, requests: AsyncIterator[bytes], context: Context
    ) -> None:
        """Run the kernels of the calls on one stream."""
        number = self._rules.new_lane()
        calls = StreamCalls(self._execution, self._rules, self._threads, number)
        whose = "the large tensors of this connection"
        budget = TensorBudget(self._max_call_bytes, whose, self._budget)
        client = None
        if self._rules.room is not None:  # the stream is a client's, not the daemon's
            client = process_client_calls().begin(remote_client("", context.peer() or ""))
        stream = CallStream(
            calls,
            context,
            budget,
            self._limit,
            self._at_once,
            StreamLane(self._rules.session, number).metadata,
            client,
        )
        self._streams.add(stream)
        try:
            await stream.serve(requests)
        finally:
            self._streams.discard(stream)
            if client is not None:
                process_client_calls().end(client)
