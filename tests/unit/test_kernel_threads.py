"""Pools of threads run all work, reuse threads that rest, and start no more than they may."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from opdispatch_server.worker.incoming import kernel_threads
from opdispatch_server.worker.incoming.kernel_threads import KernelPool
from tests.service.running_daemon import wait_for
from tests.waits import LONGEST_WAIT


class Work:
    """Work that lasts until it is let end."""

    def __init__(self):
        self.threads = SimpleQueue()
        self._may_end = threading.Semaphore(0)

    def __call__(self):
        self.threads.put(threading.current_thread())
        assert self._may_end.acquire(timeout=LONGEST_WAIT)

    def next_thread(self):
        return self.threads.get(timeout=LONGEST_WAIT)

    def let_end(self, count=1):
        self._may_end.release(count)


def wait_until_resting(pool, count):
    assert wait_for(lambda: len(pool._idle) == count)


def test_work_that_overlaps_has_a_thread_each_and_these_are_used_again():
    pool, work = KernelPool(10, "test"), Work()
    for _ in range(3):
        pool.submit(work)
    threads = {work.next_thread() for _ in range(3)}
    assert len(threads) == 3
    work.let_end(3)
    wait_until_resting(pool, 3)
    last = None
    for _ in range(5):
        pool.submit(work)
        thread = work.next_thread()
        assert thread in threads
        assert last in (None, thread)  # the one that has worked last
        last = thread
        work.let_end()
        wait_until_resting(pool, 3)


def test_more_work_than_threads_waits_for_one_of_them():
    pool, work = KernelPool(2, "test"), Work()
    for _ in range(5):
        pool.submit(work)
    threads = {work.next_thread(), work.next_thread()}
    assert work.threads.empty()
    work.let_end(5)
    assert {work.next_thread() for _ in range(3)} <= threads


def test_work_that_fails_leaves_its_thread_to_others(caplog):
    pool, work = KernelPool(1, "test"), Work()
    pool.submit(int, "no number")
    pool.submit(work)
    work.next_thread()
    work.let_end()
    [record] = caplog.records
    assert "no number" in record.exc_text


def test_without_another_thread_work_waits_for_one_and_without_any_it_is_refused(monkeypatch):
    class Scarce(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    pool, work = KernelPool(10, "test"), Work()
    with monkeypatch.context() as patch:
        patch.setattr(kernel_threads.threading, "Thread", Scarce)
        with pytest.raises(RuntimeError):
            pool.submit(work)
    pool.submit(work)
    thread = work.next_thread()
    with monkeypatch.context() as patch:
        patch.setattr(kernel_threads.threading, "Thread", Scarce)
        pool.submit(work)
    work.let_end(2)
    assert work.next_thread() is thread
    assert work.threads.empty()  # what was refused never ran
