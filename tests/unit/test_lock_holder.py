"""Which thread keeps the interpreter lock."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from opdispatch_server.blame.flight_record import KERNEL, Flight, Subject
from opdispatch_server.blame.lock_holder import LockHolder, choose_holder
from tests.service.running_daemon import wait_for


def flight(number: int) -> Flight:
    return Flight(Subject(KERNEL, "lib", f"lib::f{number}"), 0.0, number)


A, B, C = map(flight, (1, 2, 3))


def test_thread_that_computes_holds_the_lock():
    assert choose_holder({A: (0.9, 3.0), B: (0.01, 190.0), C: (0.01, 200.0)}) is A


def test_thread_that_does_not_ask_for_the_lock_holds_it():
    assert choose_holder({A: (0.0, 0.0), B: (0.01, 190.0)}) is A


def test_two_possible_holders_are_not_distinguished():
    assert choose_holder({A: (0.0, 0.0), B: (0.0, 1.0)}) is None
    assert choose_holder({A: (0.5, 50.0), B: (0.4, 50.0)}) is None
    assert choose_holder({}) is None


PROGRAM = """
import re, threading
threads = []
def wait():
    while True:
        pass
def hold():
    print(*threads, threading.get_native_id(), flush=True)
    re.match(r"(a+)+$", "a" * 60 + "b")
waits = threading.Thread(target=wait, daemon=True)
waits.start()
threads.append(waits.native_id)
hold()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts for each thread")
def test_holder_is_found_among_threads_of_another_process():
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        waits, holds = map(flight, map(int, process.stdout.readline().split()))
        holder = LockHolder(process.pid)
        assert holder.find([waits, holds]) is None  # the first look has nothing to compare with
        assert wait_for(lambda: holder.find([waits, holds]) == holds)
        assert not holder.is_stopped
        process.send_signal(signal.SIGSTOP)
        assert wait_for(lambda: holder.is_stopped)
        process.kill()
