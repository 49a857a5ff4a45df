"""The accounting of every kernel run, on every path of calls."""

from __future__ import annotations

from collections.abc import Sequence

from opdispatch_server.call_context import CallContext, RunningCall
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.worker.execution.slow_call_log import SlowCallLog
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.v1 import execution_pb2

PROGRAM = "program"
"""The operator name under which programs are counted."""


class CallAccounting:
    """Counts the calls of one interpreter, in any thread.

    Every run of a program passes through ``end``, and every other one through
    ``RecordedRuns.run``.
    """

    def __init__(self, counts: CallCounts, slow_calls: SlowCallLog) -> None:
        self.counts = counts
        self.slow_calls = slow_calls

    def row_of(self, choice: ChosenKernel, library: LoadedLibrary | None) -> int:
        """Return the counter row for calls of a kernel.

        A kernel that every process has belongs to no library.
        """
        if library is None:
            return self.counts.row_of(choice.series("", 0))
        return self.counts.row_of(choice.series(library.name, library.version))

    def row_of_program(self, libraries: Sequence[LoadedLibrary]) -> int:
        """Return the counter row for programs that use these libraries."""
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
        """Record a kernel's run for a call, which is counted in ``row``."""
        self.counts.note(
            row,
            run_ns,
            context.queued,
            call.argument_bytes,
            call.result_bytes,
            failed=failed,
        )
        if run_ns + context.queued > self.slow_calls.threshold_ns:
            self.slow_calls.log(request.operator, None, request.id, context.queued, run_ns, call)
