"""Leaks of a race are found: here something does leak, on purpose."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from opdispatch_client import connect
from opdispatch_stress import leaks
from opdispatch_stress.leaks import Baseline, find_counts, find_remains
from opdispatch_stress.private_daemon import PrivateDaemon, private_daemon

pytestmark = pytest.mark.slow

# Each call leaves a process, a socket beside the interpreter's own, and a shared segment.
LEAKS = """\
import os
import socket
import subprocess

from opdispatch import Library

lib = Library("leaks", "DEF")
lib.define("process(Tensor x) -> int")
lib.define("segment(Tensor x) -> int")
lib.define("socket(Tensor x, str folder) -> int")
kept = []


def make_socket(x, folder):
    kept.append(socket.socket(socket.AF_UNIX))
    kept[-1].bind(os.path.join(folder, "leaked.sock"))
    return 1


lib.impl("process", lambda x: subprocess.Popen(["sleep", "1000"]).pid, "CPU")
lib.impl("segment", lambda x: os.memfd_create("leaked"), "CPU")
lib.impl("socket", make_socket, "CPU")
"""
X = np.zeros(1)


@pytest.fixture
def own_daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrivateDaemon]:
    monkeypatch.setattr(leaks, "_SETTLE_SECONDS", 0.5)
    with private_daemon(workers=1) as daemon:
        yield daemon


def folder_of_sockets(daemon: PrivateDaemon) -> Path:
    runtime = Path(daemon.address.removeprefix("unix://")).parent / "run"
    [folder] = (path for path in runtime.iterdir() if path.is_dir())
    return folder


def test_leaks_are_found(own_daemon: PrivateDaemon, tmp_path: Path):
    baseline, segments = Baseline(own_daemon, 1), own_daemon.shared_segments()
    assert baseline.find_leaks() == []
    path = tmp_path / "leaks.py"
    path.write_text(LEAKS)
    with connect(own_daemon.address) as session:
        session.load(path)
        session.call("leaks::segment", X)
        [leak] = baseline.find_leaks()
        assert leak == f"{segments + 1} shared segments are open, before {segments}"
        folder = folder_of_sockets(own_daemon)
        session.call("leaks::socket", X, str(folder))
        pid = session.call("leaks::process", X)
        assert find_counts(session) == []
        found = baseline.find_leaks()
    assert found[0] == "4 processes are running, expected 3"
    assert f"    {pid}: sleep 1000" in found
    assert any("leaked.sock" in leak for leak in found)
    # With the daemon all of it goes.
    own_daemon.stop()
    assert find_remains(own_daemon) == []


def test_a_file_that_is_left_is_found(own_daemon: PrivateDaemon):
    folder = folder_of_sockets(own_daemon)
    (folder.parent / "left").touch()
    own_daemon.stop()
    assert find_remains(own_daemon) == ["in the runtime folder is left: ['left']"]
