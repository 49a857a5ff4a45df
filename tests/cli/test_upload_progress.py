"""``opdispatch load`` shows how far a large upload is."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT, RunCommand
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon


@pytest.fixture
def package(tmp_path: Path) -> Path:
    package = tmp_path / "big"
    package.mkdir()
    (package / "__init__.py").write_text(constant(1, namespace="big"))
    (package / "weights.bin").write_bytes(os.urandom(12 * 2**20))
    return package


def test_load_says_once_elsewhere_than_on_a_terminal_what_it_uploads(
    run: RunCommand, package: Path
):
    loaded = run("load", "./big")
    assert (loaded.code, loaded.err) == (0, "uploading 12.0 MiB\n")
    assert run("unload", "big").code == 0
    assert run("load", "./big").err == ""  # the daemon has it
    run("unload", "big")


def test_load_shows_a_bar_on_a_terminal_that_goes_away(daemon: RunningDaemon, package: Path):
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [SCRIPT, "--address", daemon.address, "load", "./big"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=package.parent,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stdout.startswith(b"loaded big v")
    assert "uploading" in shown
    assert "/12.6" in shown  # MB, as of files
    assert shown.rstrip().endswith("\x1b[2K")  # the line is empty again
    with daemon.connect() as session:
        session.unload("big")
