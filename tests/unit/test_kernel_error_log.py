"""Errors of kernels: logged once, a few lines of a flood, and all of them counted."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.log_fields import fields_of, traceback_of
from opdispatch_server.log_repetition import FIRST_PAUSE, LONGEST_PAUSE
from opdispatch_server.worker.execution.kernel_error_log import FailedCall, KernelErrorLog
from opdispatch_wire.errors import KernelError
from tests.waits import join


class Lines(logging.Handler):
    """The records of the log, as long as it is attached."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def __enter__(self) -> Lines:
        logging.getLogger("opdispatch.kernels").addHandler(self)
        return self

    def __exit__(self, *exc: object) -> None:
        logging.getLogger("opdispatch.kernels").removeHandler(self)

    def left_out(self) -> int:
        return sum(getattr(record, "left_out", 0) for record in self.records)


class Clock:
    """Seconds, as a test wants them."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def failed(operator: str = "a::f", exception: str = "ValueError", **about: int) -> FailedCall:
    return FailedCall(operator, f"the kernel of {operator} raised {exception}", exception, **about)


def counted(log: KernelErrorLog) -> dict[str, int]:
    counts = log.take_counts()
    return {each.operator: each.count for each in counts.counts} if counts else {}


def test_first_error_is_logged_at_once_with_fields_and_traceback():
    error = KernelError(
        "the kernel of a::f raised ValueError: no",
        operator="a::f",
        exception_type="ValueError",
        traceback="File k.py, line 3",
    )
    log = KernelErrorLog(lambda: "worker-1")
    with Lines() as lines:
        log.note(FailedCall.of(error, operator="a::f", call=7, load_id=3, library="lib", version=2))
    (record,) = lines.records
    assert dict(fields_of(record)) == {
        "event": "kernel_error",
        "operator": "a::f",
        "library": "lib",
        "version": 2,
        "interpreter": "worker-1",
        "call": 7,
        "exception": "ValueError",
    }
    assert (record.levelno, record.getMessage()) == (logging.ERROR, error.message)
    assert traceback_of(record) == "File k.py, line 3"


def test_error_log_keeps_no_error_alive():
    error = KernelError("no")
    log = KernelErrorLog(lambda: "w")
    for _ in range(2):  # the second one is not logged yet
        log.note(FailedCall.of(error, operator="a::f"))
    gone = weakref.ref(error)
    del error
    assert gone() is None


def test_flood_is_a_few_lines_that_account_for_every_error():
    clock = Clock()
    log = KernelErrorLog(lambda: "w", clock)
    with Lines() as lines:
        for _ in range(100_000):
            log.note(failed())
            clock.now += 0.001
        log.flush(all_of_them=True)
    assert len(lines.records) <= 2 + math.log2(100 / FIRST_PAUSE) + 100 / LONGEST_PAUSE
    assert len(lines.records) + lines.left_out() == 100_000
    assert "like it were left out" in lines.records[-1].getMessage()
    assert counted(log) == {"a::f": 100_000}
    assert counted(log) == {}


def test_suppressed_errors_are_summarized_after_the_pause():
    clock = Clock()
    log = KernelErrorLog(lambda: "w", clock)
    with Lines() as lines:
        for number in range(424):
            log.note(failed(call=number + 1))
        assert (len(lines.records), log.flush()) == (1, FIRST_PAUSE)
        clock.now += FIRST_PAUSE
        assert log.flush() is None
    assert [(r.call, getattr(r, "left_out", 0)) for r in lines.records] == [(1, 0), (424, 422)]


def test_error_after_a_quiet_time_is_a_first_one_again():
    clock = Clock()
    log = KernelErrorLog(lambda: "w", clock)
    with Lines() as lines:
        for _ in range(5):
            log.note(failed())
            clock.now += 1000.0
    assert (len(lines.records), lines.left_out()) == (5, 0)


def test_exceptions_of_ever_new_classes_are_a_flood_too():
    clock = Clock()
    log = KernelErrorLog(lambda: "w", clock)
    with Lines() as lines:
        for number in range(10_000):
            log.note(failed(exception=f"Error{number}"))
        log.flush(all_of_them=True)
    assert len(lines.records) < 20
    assert len(lines.records) + lines.left_out() == 10_000


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2000).map(str), st.integers(0, 20).map(str), st.floats(0.0, 100.0)
        ),
        max_size=300,
    )
)
def test_lines_and_left_out_add_up_for_any_sequence(events: list[tuple[str, str, float]]):
    clock = Clock()
    log = KernelErrorLog(lambda: "w", clock)
    with Lines() as lines:
        for operator, exception, pause in events:
            log.note(failed(operator, exception))
            clock.now += pause
            log.flush()
        log.flush(all_of_them=True)
    noted = Counter(operator for operator, _, _ in events)
    told: Counter[str] = Counter()
    for record in lines.records:
        told[record.operator] += 1 + getattr(record, "left_out", 0)
    assert told == noted == counted(log)


def test_threads_lose_no_error():
    log = KernelErrorLog(lambda: "w")
    with Lines() as lines:
        threads = [
            threading.Thread(target=lambda: [log.note(failed()) for _ in range(500)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            join(thread)
        log.flush(all_of_them=True)
    assert len(lines.records) + lines.left_out() == 4000
    assert counted(log) == {"a::f": 4000}


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_error_of_a_nested_call_is_logged_at_the_level_that_is_asked_for(level: int):
    logging.getLogger("opdispatch.kernels").setLevel(logging.DEBUG)
    try:
        with Lines() as lines:
            KernelErrorLog(lambda: "w").note(failed(level=level))
    finally:
        logging.getLogger("opdispatch.kernels").setLevel(logging.NOTSET)
    assert [record.levelno for record in lines.records] == [level]
