"""Records, counts and judges each run of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TypeVar, TypeVarTuple

from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import (
    FIRST_ROW,
    ROW_WORDS,
    SPARE_SLOT,
    THREAD,
    FlightRecorder,
)
from opdispatch_server.call_context import RUNNING_CALL, RunningCall
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_server.worker.libraries.loaded import LoadedLibrary

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

# A kernel with so many harmless runs in this process is not suspected.
_OFTEN = 5


class RecordedRuns:
    """Runs kernels, one at a time in the calling thread, and records each run.

    ``accounting`` counts every run, and ``fitness`` says whether the process may continue.
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
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
    ) -> T:
        """Call a function that runs a kernel for a call with that ``key`` in the flight record.

        The call was queued for ``queued`` ns. Raises RefusedError if the library is gone, or the
        process unfit to run it.
        """
        if library is not None:
            library.begin_call()
        token = RUNNING_CALL.set(call)
        # FlightRecorder.begin and end, inlined: every call comes through here.
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
        words[slot + 2] = THREAD.native_id
        words[slot + 3] = key
        words[slot + 4] = choice.counts_row + 1
        words[slot] = row + 1
        at = FIRST_ROW + row * ROW_WORDS  # end_word, inlined
        failed = True
        try:
            result = function(*args)
            failed = False
            return result
        except Exception as error:
            # A kernel with few runs may have caused that itself, and would do so elsewhere, too.
            may_run_elsewhere = (
                recorder.words[at + 1] >= _OFTEN and not choice.signature.schema.is_mutable
            )
            operator = str(choice.name)
            if fitness.check_after(error) and may_run_elsewhere:
                raise fitness.refusal(operator) from error
            raise
        finally:
            words = recorder.words  # a different array in a forked child
            # Counted once: from here on its interpreter's end no longer cuts it off.
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
