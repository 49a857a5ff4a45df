"""``--watch`` of lists."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import SCRIPT
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def watching(start: Start) -> Iterator[Start]:
    """Start a command that watches, which has ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start_watching(*words: str) -> subprocess.Popen[str]:
        started.append(start(*words))
        return started[-1]

    yield start_watching
    for process in started:
        process.kill()
        process.communicate(timeout=LONGEST_WAIT)


@pytest.mark.parametrize("words", [["interpreters"], ["libraries"], ["ops", "shop::*"]])
def test_list_is_shown_again_when_it_has_changed(
    watching: Start, daemon: RunningDaemon, words: list[str]
):
    process = watching(*words, "--watch", "--json")
    assert process.stdout is not None
    before = json.loads(process.stdout.readline())
    with daemon.connect() as session:
        session.scale("shop", 2)
        try:
            if words[0] != "ops":
                after = json.loads(process.stdout.readline())
                assert after != before
                assert [each["name"] for each in after] == [each["name"] for each in before]
        finally:
            session.scale("shop", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONGEST_WAIT) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_a_terminal_has_its_screen_back(daemon: RunningDaemon):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SCRIPT, "--address", daemon.address, "interpreters", "-w"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""

    def read() -> bytes:
        nonlocal shown
        if select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
        return shown

    try:
        assert wait_for(lambda: read().count(b"\x1b[H") >= 2), shown  # drawn, and drawn again
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_WAIT) == 130
        assert wait_for(lambda: read().rstrip().endswith(b"\x1b[?1049l")), shown
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_WAIT)
        os.close(ours)
    assert shown.startswith(b"\x1b[?1049h")
    assert b"worker-1" in shown
