"""``opdispatch top``, at a terminal and without one."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cli.conftest import SCRIPT, RunCommand
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT


@dataclass
class Terminal:
    """A command at a terminal of its own."""

    process: subprocess.Popen[bytes]
    descriptor: int
    theirs: int
    shown: bytes = field(default=b"")

    def read(self) -> bytes:
        """Return everything shown so far."""
        while select.select([self.descriptor], [], [], 0)[0]:
            self.shown += os.read(self.descriptor, 65536)
        return self.shown

    @property
    def echoes(self) -> bool:
        """Whether keys are shown, as at the prompt of a shell."""
        return bool(termios.tcgetattr(self.theirs)[3] & termios.ECHO)


@pytest.fixture
def terminal(daemon: RunningDaemon) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 200))
    process = subprocess.Popen(
        [SCRIPT, "--address", daemon.address, "top"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    try:
        yield Terminal(process, ours, theirs)
    finally:
        process.kill()
        process.wait(LONGEST_WAIT)
        os.close(ours)
        os.close(theirs)


def test_the_screen_follows_what_happens_and_q_ends_it(daemon: RunningDaemon, terminal: Terminal):
    assert wait_for(lambda: b"worker-1" in terminal.read()), terminal.shown
    assert terminal.shown.startswith(b"\x1b[?1049h")
    assert not terminal.echoes
    assert b"bank" not in terminal.shown
    library = daemon.folder / "bank.py"
    library.write_text(
        'from opdispatch import Library\nlib = Library("bank", "DEF")\n'
        'lib.define("quote(float x) -> float")\n'
        'lib.impl("quote", lambda x: x, "CompositeExplicitAutograd")\n'
    )
    with daemon.connect() as session:
        session.load(library)
        try:
            assert wait_for(lambda: b"bank" in terminal.read()), terminal.shown
            session.ops.bank.quote(1.0)
            assert wait_for(lambda: b"bank::quote" in terminal.read()), terminal.shown
            assert b"MEAN RUN" in terminal.shown
        finally:
            session.unload("bank")
    os.write(terminal.descriptor, b"xq")
    assert terminal.process.wait(LONGEST_WAIT) == 0
    assert wait_for(lambda: terminal.read().rstrip().endswith(b"\x1b[?1049l")), terminal.shown
    assert terminal.echoes


def test_ctrl_c_ends_it_like_any_command(terminal: Terminal):
    assert wait_for(lambda: b"worker-1" in terminal.read()), terminal.shown
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(LONGEST_WAIT) == 130
    assert terminal.echoes


def test_one_report_is_printed_without_a_terminal(run: RunCommand, daemon: RunningDaemon):
    outcome = run("top", "--once")
    assert (outcome.code, outcome.err) == (0, "")
    first, *_ = outcome.out.splitlines()
    assert first.startswith("serving; ")
    assert "calls/s" in first
    for heading in ("INTERPRETER", "LIBRARY", "shop"):
        assert heading in outcome.out
    assert "\x1b" not in outcome.out


def test_reports_are_data_with_json(run: RunCommand, daemon: RunningDaemon):
    outcome = run("--json", "top", "--once")
    [line] = outcome.out.splitlines()
    report = json.loads(line)
    assert {each["name"] for each in report["libraries"]} >= {"shop"}
    assert report["activity"]["ready"] is True
    assert report["activity"]["interval"] > 0


def test_reports_go_on_until_the_reader_has_gone(daemon: RunningDaemon):
    process = subprocess.Popen(
        [SCRIPT, "--address", daemon.address, "--json", "top"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["epoch"] > 0
        process.stdout.close()
        assert process.wait(LONGEST_WAIT) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()
    finally:
        process.kill()
        process.wait(LONGEST_WAIT)
