"""The accounts of every run of a kernel, whichever way its call came."""

from __future__ import annotations

from collections.abc import Sequence

from opdispatch_server.call_context import CallContext
from opdispatch_server.metrics.call_counts import CallCounts, Series
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary
from opdispatch_wire.v1 import execution_pb2

PROGRAM = "program"
"""The operator that programs are counted under."""


class CallAccounting:
    """Counts the calls of one interpreter, in any thread.

    Every run of a program passes through ``end``, and every other one through
    ``KernelExecution.note``.
    """

    def __init__(self, counts: CallCounts) -> None:
        self.counts = counts

    def row_of(self, choice: ChosenKernel, library: LoadedLibrary | None) -> int:
        """Return where calls of a kernel are counted; it is of no library where every process
        has it."""
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
        *,
        failed: bool,
    ) -> None:
        """Record the run of a kernel for a call, which was counted in ``row``."""
        self.counts.note(row, run_ns, context.queued, failed=failed)
