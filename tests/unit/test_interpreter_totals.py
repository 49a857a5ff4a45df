"""The daemon's totals of calls in interpreters that live, part from it, and end."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from opdispatch_server.blame.flight_record import FlightRecord
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters import totals as totals_module
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.metrics.call_counts import OTHER_SERIES, CallCounts, Series
from opdispatch_server.metrics.call_table import SharedCounts
from opdispatch_wire.v1 import interpreter_pb2 as pb
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memfds")

F = Series("lib::f", "CPU", "lib", "1")
# It has counted two calls, and is running two more of lib::f when it ends.
INTERPRETER = """
import sys
from opdispatch_server.blame.flight_record import KERNEL, FlightRecorder, Subject
from opdispatch_server.metrics.call_counts import CallCounts, Series
counts, recorder = CallCounts(), FlightRecorder()
row = counts.row_of(Series("lib::f", "CPU", "lib", "1"))
for _ in range(2):
    counts.note(row, 5, 0, failed=False)
    recorder.begin(recorder.row_of(Subject(KERNEL, "lib", "lib::f")), 0, row)
print(counts.descriptor, recorder.descriptor, flush=True)
sys.stdin.read()
"""


class Session(SimpleNamespace):
    """As much of a session as counts; each is one of its own."""

    __hash__ = object.__hash__


class Interpreter:
    """A process that has counted, and its session."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", INTERPRETER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        counts, record = map(int, self.process.stdout.readline().split())
        self.counts = SharedCounts.open(self.process.pid, counts)
        assert self.counts is not None
        self.record = FlightRecord.open(self.process.pid, record)

    def session(self, cause: Cause = Cause.CRASHED) -> Any:
        return Session(
            pid=self.process.pid,
            flight_record=self.record,
            cause=cause,
            name="worker-1",
            reason="its process exited",
        )

    def end(self) -> None:
        self.process.communicate(timeout=LONGEST_WAIT)


@pytest.fixture
def interpreter() -> Any:
    made = Interpreter()
    yield made
    made.end()


def test_calls_cut_off_by_the_end_of_a_process_are_counted_once(interpreter: Interpreter):
    totals, session = InterpreterTotals(), interpreter.session()
    totals.begin(session, interpreter.counts, is_near=True)
    assert totals.read().counts()[F][:2] == (2, 0)
    interpreter.end()
    totals.end(session)
    totals.end(session)
    for _ in range(2):
        assert (totals.read().counts()[F].ok, totals.read().counts()[F].died) == (2, 2)
    counted, [death] = totals.deaths()
    assert counted == {"crashed": 1}
    assert death.running == ("lib::f", "lib::f")


def test_a_process_that_comes_back_is_not_counted_twice(interpreter: Interpreter):
    totals, first = InterpreterTotals(), interpreter.session(Cause.ORDERLY)
    totals.begin(first, interpreter.counts, is_near=True)
    totals.end(first)
    assert totals.read().counts()[F].ok == 2, "it goes on counting without a session"
    second = interpreter.session()
    totals.begin(second, interpreter.counts, is_near=True)
    assert (totals.read().counts()[F].ok, totals.read().counts()[F].died) == (2, 0)
    assert totals.deaths() == ({}, [])


def test_counts_of_a_far_interpreter_come_with_its_heartbeats():
    totals, counts = InterpreterTotals(), CallCounts()
    counts.note(counts.row_of(F), 5, 0, failed=True)
    rows = [pb.CallCountRow(row=row, words=words) for row, words in counts.rows()]
    session: Any = Session(
        pid=1, flight_record=None, cause=Cause.SILENT, name="far", reason="silent"
    )
    totals.begin(session, None, is_near=False)
    session.heartbeat = pb.Heartbeat(call_counts=rows)
    totals.note_rows(session)
    assert totals.read().counts()[F].failed == 1
    totals.end(session)
    assert totals.read().counts()[F].failed == 1


def test_series_beyond_the_limit_are_added_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(totals_module, "MOST_PAST_SERIES", 3)
    totals, counts = InterpreterTotals(), CallCounts()
    for n in range(5):
        counts.note(counts.row_of(F._replace(operator=f"lib::f{n}")), 5, 0, failed=False)
    rows = [pb.CallCountRow(row=row, words=words) for row, words in counts.rows()]
    session: Any = Session(pid=1, flight_record=None, cause=Cause.ORDERLY)
    totals.begin(session, None, is_near=False)
    session.heartbeat = pb.Heartbeat(call_counts=rows)
    totals.note_rows(session)
    found = totals.read().counts()
    assert found[OTHER_SERIES].ok == 2
    assert sum(each.ok for each in found.values()) == 5


def test_ended_interpreters_are_added_up_without_a_reader():
    totals, counts = InterpreterTotals(), CallCounts()
    counts.note(counts.row_of(F), 5, 0, failed=False)
    rows = [pb.CallCountRow(row=row, words=words) for row, words in counts.rows()]
    for _ in range(3 * totals_module._MOST_ENDED):
        session: Any = Session(pid=1, flight_record=None, cause=Cause.ORDERLY)
        totals.begin(session, None, is_near=False)
        session.heartbeat = pb.Heartbeat(call_counts=rows)
        totals.note_rows(session)
        totals.end(session)
        assert len(totals._ended) <= totals_module._MOST_ENDED
    assert totals.read().counts()[F].ok == 3 * totals_module._MOST_ENDED
