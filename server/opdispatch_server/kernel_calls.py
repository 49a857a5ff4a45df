"""The calls that reach an interpreter over gRPC: kernels run in threads of pools."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from opdispatch_server.call_context import KERNEL_THREADS, CallContext
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.kernel_execution import KernelExecution
from opdispatch_wire.callee_tensors import CalleeTensors
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2

if TYPE_CHECKING:  # the daemon's
    from opdispatch_server.kernel_runs import KernelRun
    from opdispatch_server.quick_calls import OnReply


class KernelCalls:
    """A ``CallRunner`` that runs kernels here. Belongs to the event loop."""

    def __init__(self, execution: KernelExecution) -> None:
        self._execution = execution
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply
    ) -> None:
        """None: every kernel waits for a thread."""

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: KernelRun | None = None,
    ) -> execution_pb2.CallReply:
        """Runs a kernel; one whose call is cancelled before it has a thread is dropped.

        Raises as ``KernelExecution.run``, and MessageTooLargeError.
        """
        # A library's own threads are as many as it may run calls at a time: see
        # Note [Calls that are sent ahead].
        pool = (
            self._execution.threads_of(context.lane, context.limit)
            if context.lane
            else self._pool_for(context.depth)
        )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(pool, GUARD.run, self._run, request, context)

    def _run(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> execution_pb2.CallReply:
        beside = context.tensors or CallTensors()
        tensors = CalleeTensors([*beside.arguments], is_limited=not request.chunks_reply)
        beside.arguments = ()  # each goes when the kernel lets go of it
        reply = self._execution.run(request, context, tensors)
        self._execution.check_size(reply, tensors)
        beside.results = tensors.results
        return reply

    def _pool_for(self, depth: int) -> ThreadPoolExecutor:
        # See call_context: a pool for each depth.
        pool = self._pools.get(depth)
        if pool is None:
            pool = ThreadPoolExecutor(KERNEL_THREADS, thread_name_prefix=f"kernel-{depth}")
            self._pools[depth] = pool
        return pool
