"""Reloading on save, from the command line."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.conftest import GREETING, RunCommand, StartCommand
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT


def test_a_library_is_loaded_again_when_it_is_saved(
    run: RunCommand, start: StartCommand, greeting: Path, daemon: RunningDaemon
):
    pytest.importorskip("watchfiles")
    process = start("load", "greeting.py", "--watch", OPDISPATCH_ADDRESS=daemon.address)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "watching greeting.py (Ctrl-C ends this)\n"
        assert process.stdout.readline().startswith("loaded greeting v")
        assert process.stdout.readline() == "  greeting::hello\n"
        greeting.write_text(GREETING.format(answer="second") + "1 / 0\n")
        assert "ZeroDivisionError" in process.stderr.readline()
        assert run("call", "greeting::hello").out == "hi\n"
        # As editors do it: a new file in the place of the old one.
        draft = greeting.with_suffix(".draft")
        draft.write_text(GREETING.format(answer="third"))
        draft.rename(greeting)
        assert process.stdout.readline().startswith("loaded greeting v")
        assert wait_for(lambda: run("call", "greeting::hello").out == "third\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_WAIT) == 130
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_WAIT)


def test_watching_what_is_not_there_is_wrong_usage(run: RunCommand):
    assert run("load", "nowhere.py", "--watch").code == 2
