"""``Session.map``'s iterator, over futures that the test ends itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from opdispatch_client.blocking.call_future import Callback, CallFuture
from opdispatch_client.blocking.ordered_results import OrderedResults
from tests.waits import LONGEST_WAIT


class Calls:
    """Submitted calls, and the number of flushes."""

    def __init__(self, *, answers: bool) -> None:
        self._answers = answers
        self.futures: list[Future[Any]] = []
        self.flushes = 0

    def submit(self, arguments: tuple[Any, ...]) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        if self._answers:
            (number,) = arguments
            if number == 13:
                future.set_exception(ValueError("unlucky"))
            else:
                future.set_result(number * 2)
        return future

    def flush(self) -> None:
        self.flushes += 1

    def map(self, numbers: Any, in_flight: int) -> OrderedResults:
        return OrderedResults(self.submit, self.flush, ((n,) for n in numbers), in_flight)


def test_results_come_in_order_and_calls_begin_together():
    calls = Calls(answers=True)
    results = calls.map(range(14, 100), 8)
    assert (len(calls.futures), calls.flushes) == (8, 1)
    assert list(results) == [n * 2 for n in range(14, 100)]
    assert len(calls.futures) == 86
    assert calls.flushes <= 86 / 2 + 4
    assert next(results, "end") == "end"


@pytest.mark.parametrize("in_flight", [1, 2, 3, 64])
def test_no_more_have_begun_than_allowed(in_flight: int):
    calls = Calls(answers=True)
    for taken, _ in enumerate(calls.map(range(14, 200), in_flight)):
        assert len(calls.futures) - taken <= in_flight


def test_an_error_comes_where_its_result_would_and_ends_the_rest():
    calls = Calls(answers=False)
    results = calls.map(range(10), 4)
    calls.futures[1].set_exception(ValueError("no"))
    calls.futures[0].set_result("yes")
    assert next(results) == "yes"
    with pytest.raises(ValueError, match="no"):
        next(results)
    assert [future.cancelled() for future in calls.futures[2:]] == [True] * len(calls.futures[2:])
    assert list(results) == []


def test_closing_cancels_what_is_under_way():
    calls = Calls(answers=False)
    with calls.map(range(10), 4) as results:
        calls.futures[0].set_result(1)
        assert next(results) == 1
    assert all(future.cancelled() for future in calls.futures[1:])
    assert list(results) == []
    calls = Calls(answers=False)
    del results
    calls.map(range(10), 3)  # dropped at once
    assert all(future.cancelled() for future in calls.futures)


def test_error_of_the_argument_iterator_is_raised():
    def arguments() -> Iterator[int]:
        yield 14
        raise KeyError("arguments")

    calls = Calls(answers=True)
    with pytest.raises(KeyError, match="arguments"):
        calls.map(arguments(), 4)
    assert calls.flushes == 1
    with pytest.raises(ValueError, match="in_flight is 0; expected 1 or more"):
        calls.map([], 0)
    assert list(calls.map([], 1)) == []


class Ends:
    """A future, with what happened to it."""

    def __init__(self) -> None:
        self.ended = 0
        self.cancelled = 0
        self.future = CallFuture(self._run, self._end)
        self.future.cancel_call = self._cancel

    def _run(self, callback: Callback, future: CallFuture) -> None:
        threading.Thread(target=callback, args=(future,), name="callbacks").start()

    def _end(self) -> None:
        self.ended += 1

    def _cancel(self) -> None:
        self.cancelled += 1


def test_a_future_ends_once():
    ends = Ends()
    assert ends.future.cancel()
    assert ends.future.cancel()
    ends.future.succeed(1)
    ends.future.fail(ValueError())
    assert (ends.ended, ends.cancelled) == (1, 1)
    assert wait([ends.future], timeout=0).done == {ends.future}
    with pytest.raises(CancelledError):
        ends.future.result()
    ends = Ends()
    ends.future.succeed(1)
    assert not ends.future.cancel()
    assert (ends.ended, ends.cancelled, ends.future.result()) == (1, 0, 1)


def test_callbacks_run_in_a_thread_of_their_own():
    ends, names = Ends(), []
    called = threading.Event()

    def callback(future: Future[Any]) -> None:
        names.append((threading.current_thread().name, future.result()))
        called.set()

    ends.future.add_done_callback(callback)
    ends.future.succeed(5)
    assert called.wait(LONGEST_WAIT)
    ends.future.add_done_callback(callback)
    assert names == [("callbacks", 5), (threading.current_thread().name, 5)]
