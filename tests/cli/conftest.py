"""The command line against a real daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from opdispatch_client.cli import main
from tests.cli.library import TEXT
from tests.service.running_daemon import RunningDaemon

SCRIPT = str(Path(sys.executable).with_name("opdispatch"))


@dataclass(frozen=True)
class Outcome:
    """Result of a command line."""

    code: int
    out: str
    err: str


RunCommand = Callable[..., Outcome]
StartCommand = Callable[..., subprocess.Popen[str]]

GREETING = """\
from opdispatch import Library

lib = Library("greeting", "DEF")
lib.define("hello() -> str")
lib.impl("hello", lambda: {answer!r}, "CompositeExplicitAutograd")
"""


@pytest.fixture(scope="package")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all; the library `shop` is loaded in it."""
    # Watchers get reports of activity ten times a second instead of once.
    often = {"opdispatch_server.daemon.servicers.registry_feed.ACTIVITY_CHECK_SECONDS": 0.1}
    daemon = RunningDaemon(tmp_path_factory.mktemp("cli"), constants=often)
    try:
        daemon.wait_until_ready()
        library = daemon.folder / "shop.py"
        library.write_text(TEXT)
        with daemon.connect() as session:
            session.load(library)
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def run(
    daemon: RunningDaemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> RunCommand:
    """Run a command line in this process, in a folder of its own."""
    monkeypatch.setenv("OPDISPATCH_ADDRESS", daemon.address)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)

    def run_command(*words: str) -> Outcome:
        capsys.readouterr()
        code = main(words)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run_command


@pytest.fixture
def start(daemon: RunningDaemon, tmp_path: Path) -> StartCommand:
    """Start the installed script, as a shell would."""

    def start_script(*words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [SCRIPT, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OPDISPATCH_ADDRESS": daemon.address, **variables},
        )

    return start_script


@pytest.fixture
def greeting(run: RunCommand, tmp_path: Path) -> Iterator[Path]:
    """A library's file; what is loaded from it is unloaded after the test."""
    path = tmp_path / "greeting.py"
    path.write_text(GREETING.format(answer="hi"))
    yield path
    run("unload", "greeting")
