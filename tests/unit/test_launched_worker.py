"""The process of one interpreter, from its start on."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from opdispatch_server.daemon.processes.launched_worker import WorkerCommand, WorkerProcess
from tests.open_descriptors import open_descriptors

SLEEPS = WorkerCommand(
    (sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"),
    (),
    is_own=False,
)


def children() -> set[str]:
    found = Path("/proc/self/task").glob("*/children")
    return {pid for each in found for pid in each.read_text().split()}


async def test_failed_launch_leaves_no_process_or_descriptor(
    monkeypatch: pytest.MonkeyPatch,
):
    """As where the daemon has no descriptors left."""
    others, before = children(), open_descriptors()

    async def refuse(*args: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio.get_running_loop(), "connect_read_pipe", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        await WorkerProcess.start("worker-1", SLEEPS)
    assert children() == others
    assert open_descriptors() <= before


async def test_launch_with_too_few_descriptors_leaves_none_open(
    monkeypatch: pytest.MonkeyPatch,
):
    before, pipe = open_descriptors(), os.pipe

    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def first() -> tuple[int, int]:
        monkeypatch.setattr(os, "pipe", refuse)
        return pipe()

    monkeypatch.setattr(os, "pipe", first)
    with pytest.raises(OSError, match="Too many open files"):
        await WorkerProcess.start("worker-1", SLEEPS)
    assert open_descriptors() <= before
