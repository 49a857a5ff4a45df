"""Each run of a kernel, from its beginning to its end: on record, counted, and judged."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_native_id
from time import monotonic_ns
from typing import ParamSpec, TypeVar

from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import (
    FIRST_ROW,
    ROW_WORDS,
    SPARE_SLOT,
    FlightRecorder,
)
from opdispatch_server.call_context import RUNNING_CALL, RunningCall
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary

P = ParamSpec("P")
T = TypeVar("T")

# A kernel that has run so often in this process without harm is not suspected of any.
_OFTEN = 5


class RecordedRuns:
    """Runs of kernels, one at a time in whichever thread asks.

    ``accounting`` counts every one of them, and ``fitness`` says whether the process may go on.
    """

    def __init__(
        self, recorder: FlightRecorder, fitness: Fitness, accounting: CallAccounting
    ) -> None:
        self._recorder = recorder
        self._fitness = fitness
        self._accounting = accounting
        self._slow_calls = accounting.slow_calls

    def run(
        self,
        library: LoadedLibrary | None,
        choice: ChosenKernel,
        call: RunningCall,
        key: int,
        queued: int,
        function: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Call a function that runs a kernel for a call, which the flight record names ``key``.

        The call has waited for ``queued`` ns. Raises RefusedError if the library is gone, or the
        process unfit to run it.
        """
        if library is not None:
            library.begin_call()
        token = RUNNING_CALL.set(call)
        # FlightRecorder.begin and end, in line: every call passes here.
        recorder, fitness = self._recorder, self._fitness
        row = choice.row
        if row is None:
            choice.counts_row = self._accounting.row_of(choice, library)
            row = choice.row = recorder.row_of(choice.subject(library.name if library else ""))
        try:
            slot = recorder.free.pop()
        except IndexError:
            slot = SPARE_SLOT
        words = recorder.words
        began = words[slot + 1] = monotonic_ns()
        words[slot + 2] = get_native_id()
        words[slot + 3] = key
        words[slot + 4] = choice.counts_row + 1
        words[slot] = row + 1
        at = FIRST_ROW + row * ROW_WORDS  # end_word, in line
        failed = True
        try:
            result = function(*args, **kwargs)
            failed = False
            return result
        except Exception as error:
            # One that has not run often may have done that itself, and would do so elsewhere, too.
            may_run_elsewhere = (
                recorder.words[at + 1] >= _OFTEN and not choice.signature.schema.is_mutable
            )
            operator = str(choice.name)
            if fitness.check_after(error) and may_run_elsewhere:
                raise fitness.refusal(operator) from error
            raise
        finally:
            words = recorder.words  # another one in the child of a fork
            # Counted once: from here on it is no call that its interpreter's end cuts off.
            words[slot] = 0
            ended = words[at] = monotonic_ns()
            self._accounting.counts.note(
                choice.counts_row,
                ended - began,
                queued,
                call.argument_bytes,
                call.result_bytes,
                failed=failed,
            )
            if ended - began + queued > self._slow_calls.threshold_ns:
                self._slow_calls.log(str(choice.name), library, key, queued, ended - began, call)
            if not words[at + 1]:
                fitness.check(str(choice.name))
            words[at + 1] += 1
            if slot != SPARE_SLOT:
                recorder.free.append(slot)
            RUNNING_CALL.reset(token)
            if library is not None:
                library.end_call()
