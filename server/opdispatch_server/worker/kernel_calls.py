"""The calls of one gRPC stream to an interpreter: kernels run in threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import KERNEL_THREADS, CallContext
from opdispatch_server.worker.call_rules import CallRules
from opdispatch_server.worker.kernel_execution import KernelExecution
from opdispatch_server.worker.library_turns import LibraryTurns
from opdispatch_server.worker.streamed_call import StreamedCall
from opdispatch_wire.lanes.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2

if TYPE_CHECKING:  # the daemon's
    from opdispatch_server.calls.kernel_runs import KernelRun
    from opdispatch_server.calls.quick_calls import OnReply


class KernelPool:
    """Threads that run kernels, ``size`` at most; one that has been started stays."""

    def __init__(self, size: int, name: str) -> None:
        self._has_thread = threading.Event()
        self._threads = ThreadPoolExecutor(
            size, thread_name_prefix=name, initializer=self._has_thread.set
        )

    def submit(self, work: Callable[..., None], *arguments: object) -> None:
        """Have a thread do it, the first one that is free if no other can be started.

        Raises RuntimeError if there is none at all; whoever comes first after that has the work
        in its queue nevertheless.
        """
        try:
            self._threads.submit(work, *arguments)
        except RuntimeError:  # of threading: the system's limit is reached
            if not self._has_thread.is_set():
                raise


class KernelThreads:
    """The threads in which an interpreter runs what comes over streams."""

    def __init__(self) -> None:
        # No limit: libraries say how many of their calls run at a time.
        self.with_turn = KernelPool(sys.maxsize, "kernel")
        """For calls whose turn it is in their library."""
        self._by_depth: dict[int, KernelPool] = {}

    def at_depth(self, depth: int) -> KernelPool:
        """For calls that kernels make, which take no turn; see ``call_context``."""
        pool = self._by_depth.get(depth)
        if pool is None:
            pool = KernelPool(KERNEL_THREADS, f"kernel-{depth}")
            self._by_depth[depth] = pool
        return pool


class KernelCalls:
    """A ``CallRunner`` that runs kernels here, as the ``rules`` let it. Belongs to the event loop.

    ``number`` is the stream's, for the rules.
    """

    def __init__(
        self, execution: KernelExecution, rules: CallRules, threads: KernelThreads, number: int
    ) -> None:
        self.execution = execution
        self.rules = rules
        self.threads = threads
        self._number = number

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
        """Run a kernel; one whose call is cancelled before it has a thread is dropped.

        Raises as ``KernelExecution.run`` and ``CallRules.admit``; QueueFullError and
        MessageTooLargeError.
        """
        admitted = self.rules.admit(self._number, request)
        tensors = context.tensors or CallTensors()
        call = StreamedCall(self, request, admitted, tensors)
        try:
            if (turns := self._turns_of(request, admitted)) is None:
                call.start_without_turn()
            elif turns.begin(call, admitted.limit, self.rules.room):
                turns.start(call)
        except OpdispatchError:
            self.rules.end(admitted)
            raise
        return await call.reply

    def _turns_of(
        self, request: execution_pb2.CallRequest, context: CallContext
    ) -> LibraryTurns[StreamedCall] | None:
        """Where the call takes its turn; None: it takes none, as those that kernels make."""
        if not context.lane or not request.HasField("kernel"):
            return None
        return self.execution.turns_of(request.kernel.load_id)
