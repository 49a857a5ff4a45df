"""Futures whose cancellation cancels a call."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from opdispatch.errors import OpdispatchError
from opdispatch_client.blocking.call_future import Callback, CallFuture


class Calls:
    """Events of one call, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.future = CallFuture(self._run_callback, lambda: self.events.append("ended"))
        self.future.cancel_call = lambda: self.events.append("cancelled")

    def _run_callback(self, callback: Callback, future: Future[Any]) -> None:
        self.events.append("callback")
        callback(future)


def test_a_result_ends_it_once():
    calls = Calls()
    calls.future.succeed(1)
    calls.future.succeed(2)
    calls.future.fail(ValueError())
    assert calls.future.result(0) == 1
    assert not calls.future.cancel()
    assert calls.events == ["ended"]


def test_an_error_ends_it_once():
    calls = Calls()
    calls.future.fail(ValueError("no"))
    calls.future.succeed(2)
    with pytest.raises(ValueError, match="no"):
        calls.future.result(0)
    assert calls.events == ["ended"]


@pytest.mark.parametrize(
    ("end", "abandons"),
    [
        (lambda future: future.succeed(1), 0),
        (lambda future: future.fail(ValueError()), 1),
        (lambda future: future.cancel(), 1),
    ],
    ids=["result", "error", "cancelled"],
)
def test_a_call_without_a_result_is_abandoned_once(
    end: Callable[[CallFuture], object], abandons: int
):
    events: list[str] = []
    future = CallFuture(lambda *_: None, lambda: events.append("ended"), lambda: events.append("a"))
    for _ in range(2):
        end(future)
    assert events == ["a"] * abandons + ["ended"]


def test_cancelling_cancels_the_call_once():
    calls = Calls()
    assert calls.future.cancel()
    assert calls.future.cancel()
    calls.future.succeed(1)
    with pytest.raises(CancelledError):
        calls.future.result(0)
    assert wait([calls.future], timeout=0).done == {calls.future}
    assert calls.events == ["ended", "cancelled"]


def test_a_future_without_a_call_can_be_cancelled():
    calls = Calls()
    calls.future.cancel_call = None
    assert calls.future.cancel()
    assert calls.events == ["ended"]


@pytest.mark.parametrize("how", ["succeed", "fail"])
def test_waiter_learns_of_a_cancellation_at_the_moment_of_the_end(how: str):
    # The last thing that happens before the result is set is a cancellation.
    future: CallFuture = CallFuture(lambda *_: None, lambda: cancelled.append(future.cancel()))
    cancelled: list[bool] = []
    getattr(future, how)(ValueError())
    assert cancelled == [True]
    assert wait([future], timeout=0).done == {future}
    with pytest.raises(CancelledError):
        future.result(0)


def test_callbacks_run_in_their_thread_and_at_once_when_it_is_done():
    calls = Calls()
    calls.future.add_done_callback(lambda _: calls.events.append("first"))
    calls.future.succeed(1)
    calls.future.add_done_callback(lambda _: calls.events.append("second"))
    assert calls.events == ["ended", "callback", "first", "second"]


def test_result_is_released_with_its_future_after_callbacks():
    class Result:
        pass

    future = CallFuture(lambda callback, future: callback(future), lambda: None)
    future.add_done_callback(lambda future: None)
    result = Result()
    gone = weakref.ref(result)
    future.succeed(result)
    del future, result
    assert gone() is None


def test_kept_error_keeps_no_variable_of_its_frames():
    class Argument:
        pass

    def send(argument: Argument) -> None:
        try:
            raise OSError
        except OSError as error:
            raise OpdispatchError("no") from error

    argument = Argument()
    gone = weakref.ref(argument)
    future = CallFuture(lambda *_: None, lambda: None)
    try:
        send(argument)
    except OpdispatchError as error:
        future.fail(error)
    del argument
    kept = future.exception(0)
    assert kept is not None
    assert isinstance(kept.__cause__, OSError)
    assert gone() is None
