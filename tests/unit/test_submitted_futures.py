"""How many futures of submitted calls there are, and where their callbacks run."""

import threading
import time

import pytest

from opdispatch_client.blocking import submitted_futures
from opdispatch_client.blocking.submitted_futures import SubmittedFutures
from opdispatch_wire.errors import DeadlineExceededError

SECONDS = 20.0


@pytest.fixture
def futures(monkeypatch):
    monkeypatch.setattr(submitted_futures, "SUBMITTED_AT_MOST", 2)
    made = SubmittedFutures()
    yield made
    made.close()


def test_no_more_begin_at_once_than_there_may_be(futures):
    first, second = futures.begin(), futures.begin()
    assert futures.begin() is None
    first.succeed(1)
    third = futures.begin()
    assert third is not None
    assert futures.begin() is None
    second.cancel()
    third.fail(ValueError())
    assert futures.begin() is not None
    assert futures.begin() is not None
    assert futures.begin() is None


def test_one_that_waits_begins_when_another_ends(futures):
    first, _ = futures.begin(), futures.begin()
    begun = []
    waiting = threading.Thread(target=lambda: begun.append(futures.begin_until(None)), daemon=True)
    waiting.start()
    first.succeed(1)
    waiting.join(SECONDS)
    assert len(begun) == 1
    assert not begun[0].done()


def test_one_that_waits_too_long_has_failed_and_takes_no_place(futures):
    first, _ = futures.begin(), futures.begin()
    late = futures.begin_until(time.monotonic() - 1)
    with pytest.raises(DeadlineExceededError) as caught:
        late.result(0)
    assert caught.value.facts["started"] == "no"
    first.succeed(1)
    assert futures.begin() is not None
    assert futures.begin() is None


def test_callbacks_run_in_one_thread_and_after_the_end_in_any(futures, caplog):
    future, threads, done = futures.begin(), [], threading.Event()
    future.add_done_callback(lambda _: threads.append(threading.get_ident()))
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda _: done.set())
    future.succeed(1)
    assert done.wait(SECONDS)
    assert threads[0] != threading.get_ident()
    assert "division" in caplog.text
    last = futures.begin()
    last.add_done_callback(lambda _: threads.append(threading.get_ident()))
    futures.close()
    last.succeed(1)
    assert threads[1] == threading.get_ident()
