"""Runs of kernels are on record while they last, and counted once they have ended."""

import pytest

from opdispatch.boxing.signature import Signature
from opdispatch.schema.parser import parse_schema
from opdispatch_server.blame.fitness import Fitness
from opdispatch_server.blame.flight_record import SPARE_SLOT, FlightRecorder
from opdispatch_server.call_context import NO_CALL, RUNNING_CALL, RunningCall
from opdispatch_server.metrics.call_counts import ROW_WORDS, CallCounts
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.execution.recorded_runs import RecordedRuns
from opdispatch_server.worker.execution.slow_call_log import SlowCallLog
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel
from opdispatch_wire.errors import RefusedError

KEY = 7


class Library:
    """Counts the calls that run."""

    name, version = "runs", 2

    def __init__(self, is_gone=False):
        self.running = 0
        self._is_gone = is_gone

    def begin_call(self):
        if self._is_gone:
            raise RefusedError("it has gone")
        self.running += 1

    def end_call(self):
        self.running -= 1


class Side:
    """Runs, and what they are noted in."""

    def __init__(self):
        self.recorder, self.counts = FlightRecorder(), CallCounts()
        self.slow_calls = SlowCallLog(lambda: "here")
        accounting = CallAccounting(self.counts, self.slow_calls)
        self.runs = RecordedRuns(self.recorder, Fitness(lambda: None), accounting)
        name = parse_operator_name("a::b")
        signature = Signature(parse_schema("a::b(int n) -> int"))
        self.choice = ChosenKernel(name, signature, lambda stack: stack, "CPU")

    def run(self, function, library=None, *args, queued=0):
        return self.runs.run(library, self.choice, RunningCall(), KEY, queued, function, *args)

    def counted(self):
        """Return how many calls have returned and failed."""
        at = ROW_WORDS * self.choice.counts_row
        return tuple(self.counts._words[at : at + 2])


@pytest.fixture
def side():
    return Side()


def test_a_run_is_on_record_while_it_lasts(side):
    library = Library()

    def kernel(n):
        flight = side.recorder.find_running()
        assert flight.call == KEY
        assert flight.subject == side.choice.subject("runs")
        assert library.running == 1
        assert RUNNING_CALL.get() is not NO_CALL
        assert side.counted() == (0, 0)
        return n + 1

    assert side.run(kernel, library, 2) == 3
    assert side.recorder.find_running() is None
    assert RUNNING_CALL.get() is NO_CALL
    assert library.running == 0
    assert side.counted() == (1, 0)


def test_a_run_that_fails_is_counted_as_such(side):
    library, slots = Library(), len(side.recorder.free)

    def kernel():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        side.run(kernel, library)
    assert side.counted() == (0, 1)
    assert library.running == 0
    assert len(side.recorder.free) == slots


def test_without_a_free_slot_a_run_is_counted_all_the_same(side):
    side.recorder.free.clear()
    assert side.run(lambda: 5) == 5
    assert side.counted() == (1, 0)
    assert SPARE_SLOT not in side.recorder.free


def test_kernel_of_an_unloaded_library_does_not_run(side):
    with pytest.raises(RefusedError, match="gone"):
        side.run(lambda: pytest.fail("it runs"), Library(is_gone=True))
    assert RUNNING_CALL.get() is NO_CALL


def test_run_is_logged_if_it_takes_longer_than_the_threshold_with_its_time_in_queues(side, caplog):
    side.slow_calls.log_calls_slower_than(3600)
    side.run(lambda: 5)
    assert not caplog.records
    side.run(lambda: 5, Library(), queued=3600 * 10**9)
    [record] = caplog.records
    assert (record.event, record.operator, record.library) == ("slow_call", "a::b", "runs")
    assert (record.call, record.queue_seconds) == (KEY, 3600)
