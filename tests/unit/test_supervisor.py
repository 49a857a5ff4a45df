"""The daemon's own interpreters, as processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opdispatch_server.daemon.processes import restart_policy
from opdispatch_server.daemon.processes.launched_worker import WorkerCommand
from opdispatch_server.daemon.processes.supervisor import Supervisor
from tests.waits import LONGEST_WAIT

# It ends when the daemon's end of its standard input is closed.
COMMAND = WorkerCommand((sys.executable, "-c", "import sys; sys.stdin.read()"), (), is_own=False)

ROOT = Path(__file__).parents[2]
KEEP_ONE_WITHOUT = """
import errno, os

def refuse(pid, flags=0):
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

os.pidfd_open = refuse

import asyncio
from tests.unit.test_supervisor import keep_one

asyncio.run(keep_one())
"""


@pytest.fixture(autouse=True)
def others_watch_their_children() -> Iterator[None]:
    """The supervisor's loop is not theirs."""
    yield
    if sys.version_info < (3, 12):
        asyncio.get_event_loop_policy().set_child_watcher(None)


async def keep_one() -> None:
    """Start a process, and stop it as soon as it is there."""
    supervisor = Supervisor(["worker-1"], lambda name: COMMAND)
    supervisor.start()
    async with asyncio.timeout(LONGEST_WAIT):
        while supervisor.pid_of("worker-1") is None:
            await asyncio.sleep(0)
        await supervisor.stop(10)
    assert supervisor.pid_of("worker-1") is None


async def test_a_process_that_is_starting_is_found_once_it_has_started():
    supervisor = Supervisor(["worker-1"], lambda name: COMMAND)
    assert await supervisor.find_pid("worker-1") is None
    supervisor.start()
    async with asyncio.timeout(LONGEST_WAIT):
        known = supervisor.pid_of("worker-1")
        while (found := await supervisor.find_pid("worker-1")) is None:
            await asyncio.sleep(0)
            known = supervisor.pid_of("worker-1")
        assert known is None, "it was asked for before"
        assert found == supervisor.pid_of("worker-1")
        await supervisor.stop(10)


async def test_a_process_is_started_and_awaited_without_a_thread(monkeypatch: pytest.MonkeyPatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    await keep_one()


def test_processes_are_kept_where_the_system_has_no_process_descriptors():
    # In a process of its own: asyncio remembers whether it has found any.
    subprocess.run([sys.executable, "-c", KEEP_ONE_WITHOUT], cwd=ROOT, check=True, timeout=120)


async def test_the_successor_of_one_that_was_ready_for_a_while_starts_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(restart_policy, "FIRST_PAUSE", 1e6)
    monkeypatch.setattr(restart_policy, "HEALTHY_AFTER", -1)
    ended = asyncio.Event()
    supervisor = Supervisor(["one"], lambda name: COMMAND, on_ended=lambda *how: ended.set())
    supervisor.start()
    async with asyncio.timeout(LONGEST_WAIT):
        while (first := supervisor.pid_of("one")) is None:
            await asyncio.sleep(0)
        supervisor.note_ready("one")
        supervisor.kill("one")
        await ended.wait()
        while supervisor.pid_of("one") in (None, first):
            await asyncio.sleep(0)
        await supervisor.stop(10)
