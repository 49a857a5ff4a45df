"""Processes with a mark are found, from the instant that they are there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from opdispatch_stress.marked_processes import find_marked, read_environment
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@contextmanager
def started(command: list[str], mark: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "MARK": mark}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_process_is_found(mark: str):
    with started(["sleep", "1000"], mark) as process:
        assert find_marked("MARK", mark) == {process.pid: "sleep 1000"}


def test_an_environment_is_read_also_in_the_midst_of_exec(mark: str):
    # One process in sixty is in the midst of it when Popen returns, and has nothing to read.
    for _ in range(600):
        with started(["sleep", "1000"], mark) as process:
            assert read_environment(psutil.Process(process.pid))["MARK"] == mark


def test_the_dead_are_not_found(mark: str):
    with started(["true"], mark) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert find_marked("MARK", mark) == {}


def test_a_child_whose_parent_is_gone_is_found(mark: str):
    with started(["sh", "-c", "sleep 1000 > /dev/null & echo $!"], mark) as parent:
        output, _ = parent.communicate(timeout=LONGEST_WAIT)
        try:
            assert list(find_marked("MARK", mark)) == [int(output)]
        finally:
            os.kill(int(output), signal.SIGKILL)


def test_others_are_not_found(mark: str):
    with started(["sleep", "1000"], mark):
        assert find_marked("MARK", mark + "more") == {}
    assert find_marked("MARK", mark) == {}
