"""Work for one thread, which may not be there to be had."""

from __future__ import annotations

import queue
import threading
import weakref

import pytest

from opdispatch_client.blocking.one_thread import OneThread
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT


def test_tasks_run_in_order_in_one_thread():
    one, done = OneThread("one"), queue.Queue[tuple[int, str]]()
    for number in range(3):
        one.submit(lambda n: done.put((n, threading.current_thread().name)), number)
    numbers, names = zip(*[done.get(timeout=LONGEST_WAIT) for _ in range(3)], strict=True)
    assert numbers == (0, 1, 2)
    (name,) = set(names)
    assert name.startswith("one")
    one.close()


def test_task_without_a_thread_never_runs(monkeypatch: pytest.MonkeyPatch):
    one, done = OneThread("one"), queue.Queue[str]()
    threads = ScarceThreads(monkeypatch, "one")
    for text in ("first", "second"):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            one.submit(done.put, text)
    threads.are_lacking = False
    one.submit(done.put, "third")
    assert done.get(timeout=LONGEST_WAIT) == "third"
    one.submit(done.put, "last")
    assert done.get(timeout=LONGEST_WAIT) == "last"
    assert done.empty()
    one.close()


def test_unstarted_work_is_released(monkeypatch: pytest.MonkeyPatch):
    class Argument:
        pass

    one, argument = OneThread("one"), Argument()
    gone = weakref.ref(argument)
    ScarceThreads(monkeypatch, "one")
    with pytest.raises(RuntimeError):
        one.submit(print, argument)
    del argument
    assert gone() is None
    one.close()


def test_nothing_is_done_after_the_end():
    one, done = OneThread("one"), queue.Queue[str]()
    one.close()
    one.close()
    with pytest.raises(RuntimeError):
        one.submit(done.put, "late")
    assert done.empty()
