"""The end of a process is noticed at once, and what it was."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from opdispatch_server.process_watch import (
    ProcessEnd,
    describe_exit,
    process_space,
    watch_process,
)
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process descriptors are Linux's")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def watch_until_end(process: subprocess.Popen[bytes], end: signal.Signals | None) -> ProcessEnd:
    async def story() -> str:
        ended: asyncio.Future[ProcessEnd] = asyncio.get_running_loop().create_future()
        before = open_descriptors()
        stop = watch_process(process.pid, ended.set_result)
        if end is not None:
            process.send_signal(end)
        how = await asyncio.wait_for(ended, LONGEST_WAIT)
        assert open_descriptors() == before
        stop()
        return how

    with process:
        return asyncio.run(story())


def test_the_end_of_a_child_is_described():
    sleeping = subprocess.Popen(["sleep", "1000"])
    sent_away = ProcessEnd("was ended by SIGKILL", by_itself=False)
    assert watch_until_end(sleeping, signal.SIGKILL) == sent_away
    false = subprocess.Popen(["false"])
    assert watch_until_end(false, None) == ProcessEnd("exited with status 1", by_itself=True)


@pytest.mark.parametrize(
    ("status", "by_itself"),
    [(0, True), (3, True), (-signal.SIGSEGV, True), (-signal.SIGABRT, True), (-64, True)]
    + [(-number, False) for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)],
)
def test_describe_exit_tells_own_ends_from_external_ones(status: int, by_itself: bool):
    assert describe_exit(status).by_itself is by_itself


def test_a_watch_that_is_stopped_leaves_nothing():
    async def story() -> None:
        before = open_descriptors()
        stop = watch_process(os.getpid(), lambda how: pytest.fail(how.words))
        assert len(open_descriptors()) == len(before) + 1
        stop()
        stop()
        assert open_descriptors() == before

    asyncio.run(story())


@pytest.mark.parametrize("pid", [-1, 0, 2**40])
def test_a_process_that_is_none_is_not_watched(pid: int):
    async def story() -> None:
        watch_process(pid, lambda how: pytest.fail(how.words))()

    asyncio.run(story())


def test_processes_of_one_machine_agree_where_they_are():
    code = "from opdispatch_server import process_watch as p; print(p.process_space())"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    assert other.stdout.strip() == process_space() != ""
