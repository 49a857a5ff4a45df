"""Processes that wait for a core, have one, or want none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opdispatch_server.daemon.interpreters.starvation import StarvationWatch

MS = 1_000_000


class Process:
    """Stand-in for the system's view of a process."""

    def __init__(self, proc: Path) -> None:
        self.folder = proc / "17"
        self.folder.mkdir()
        self.says(run=0, waited=0, state="S")

    def says(self, *, run: int, waited: int, state: str) -> None:
        (self.folder / "schedstat").write_text(f"{run * MS} {waited * MS} 5\n")
        (self.folder / "stat").write_text(f"17 (a) R name) {state} 1 17 17 0\n")


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.fixture
def watch(process: Process, tmp_path: Path) -> StarvationWatch:
    watch = StarvationWatch(17, tmp_path)
    assert not watch.was_starved(0.1)
    return watch


@pytest.mark.parametrize(
    ("run", "waited", "state", "starved"),
    [
        (0, 0, "S", False),  # it sleeps
        (100, 0, "R", False),  # it runs all the time
        (50, 40, "R", False),  # and half of it
        (10, 90, "S", True),  # most of the time it has waited, and then it ran
        (0, 0, "R", True),  # it waits still
        (0, 0, "T", False),  # it was stopped
    ],
)
def test_runnable_process_without_a_core_is_starved(
    process: Process, watch: StarvationWatch, run: int, waited: int, state: str, starved: bool
):
    process.says(run=run, waited=waited, state=state)
    assert watch.was_starved(0.1) is starved


def test_starved_time_counts_once(process: Process, watch: StarvationWatch):
    process.says(run=0, waited=1000, state="S")
    assert watch.was_starved(0.1)
    assert not watch.was_starved(0.1)


def test_a_process_that_has_gone_is_not_starved(
    tmp_path: Path, process: Process, watch: StarvationWatch
):
    for path in process.folder.iterdir():
        path.unlink()
    assert not watch.was_starved(0.1)
    assert not StarvationWatch(18, tmp_path).was_starved(0.1)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not count")
def test_the_system_says_so_of_this_process():
    watch = StarvationWatch(os.getpid())
    watch.was_starved(0.0)
    assert not watch.was_starved(3600.0)
