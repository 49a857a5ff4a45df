"""The accounts of every run of a kernel, whichever way its call came."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

from opdispatch_server.call_context import CallContext, RunningCall
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.logs import log_regardless
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.tracing import trace_id_of
from opdispatch_wire.v1 import execution_pb2

LOG = logging.getLogger("opdispatch.calls")

PROGRAM = "program"
"""The operator that programs are counted under."""


class CallAccounting:
    """Counts the calls of one interpreter, in any thread.

    Every run of a program passes through ``end``, and every other one through
    ``RecordedRuns.run``.
    """

    def __init__(self, counts: CallCounts, interpreter: Callable[[], str]) -> None:
        self.counts = counts
        self._interpreter = interpreter
        self.slow_ns: float = math.inf
        """After how many ns, in queues and in its kernel, a call is logged."""

    def log_calls_slower_than(self, seconds: float) -> None:
        """Log them from now on; 0: none."""
        self.slow_ns = seconds * 1e9 if seconds > 0 else math.inf

    def log_slow(
        self,
        operator: str,
        library: LoadedLibrary | None,
        call: int,
        queue_ns: int,
        kernel_ns: int,
        running: RunningCall,
    ) -> None:
        """Log a slow call; of many alike a few: see ``FLOODS``."""
        extra = fields(
            Event.SLOW_CALL,
            operator=operator,
            library=library.name if library else "",
            version=library.version if library else 0,
            interpreter=self._interpreter(),
            call=call & 0xFFFFFFFF,
            trace=trace_id_of(running.traceparent),
        )
        extra |= {"queue_seconds": queue_ns / 1e9, "kernel_seconds": kernel_ns / 1e9}
        if running.nested_calls is not None:
            extra["nested_seconds"] = running.nested_calls.seconds
        message = f"the call of {operator} was slow"
        log_regardless(LOG, logging.WARNING, message, extra=extra)

    def row_of(self, choice: ChosenKernel, library: LoadedLibrary | None) -> int:
        """Return where calls of a kernel are counted.

        It is of no library where every process has it.
        """
        if library is None:
            return self.counts.row_of(choice.series("", 0))
        return self.counts.row_of(choice.series(library.name, library.version))

    def row_of_program(self, libraries: Sequence[LoadedLibrary]) -> int:
        """Return where programs are counted that use these libraries."""
        if len(libraries) != 1:
            return self.counts.row_of(Series(PROGRAM))
        [library] = libraries
        return self.counts.row_of(Series(PROGRAM, "", library.name, str(library.version or "")))

    def end(
        self,
        row: int,
        run_ns: int,
        request: execution_pb2.CallRequest,
        context: CallContext,
        call: RunningCall,
        *,
        failed: bool,
    ) -> None:
        """Record the run of a kernel for a call, which was counted in ``row``."""
        self.counts.note(
            row,
            run_ns,
            context.queued,
            call.argument_bytes,
            call.result_bytes,
            failed=failed,
        )
        if run_ns + context.queued > self.slow_ns:
            self.log_slow(request.operator, None, request.id, context.queued, run_ns, call)
