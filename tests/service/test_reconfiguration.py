"""SIGHUP, and what a daemon tells its service manager."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT


class Manager:
    """A service manager's end of ``sd_notify``."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(LONGEST_WAIT)
        self._socket.bind(self.path)

    def receive(self) -> str:
        """The next message that is no watchdog's."""
        while (message := self._socket.recv(4096).decode()) == "WATCHDOG=1":
            pass
        return message

    def receive_watchdog(self) -> None:
        while self._socket.recv(4096) != b"WATCHDOG=1":
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path)
    yield manager
    manager.close()


def test_hangup_reads_the_file_again_and_limits_change(start_daemon: StartDaemon, tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("[serve]\nremote-values = 1\nqueue = 7\n")
    daemon = start_daemon("--config", str(file), workers=1)
    with daemon.connect() as session:
        session.load("opdispatch.array_library")
        first = session.put(np.zeros(2))
        with pytest.raises(oc.OpdispatchError, match="1"):
            session.put(np.zeros(2))
        file.write_text("[serve]\nremote-values = 2\nqueue = 8\n")
        daemon.signal(signal.SIGHUP)
        said = "the configuration was read again: remote_values; at the next start: queue"
        assert wait_for(lambda: said in daemon.log())
        second = session.put(np.zeros(2))
        del first, second


def test_hangup_keeps_the_settings_where_the_file_is_wrong(
    start_daemon: StartDaemon, tmp_path: Path
):
    file = tmp_path / "config.toml"
    file.write_text("")
    daemon = start_daemon("--config", str(file), workers=0)
    daemon.expects_errors = True
    file.write_text("[serve]\nquue = 1\n")
    daemon.signal(signal.SIGHUP)
    assert wait_for(lambda: "unknown key 'quue'" in daemon.log())
    with daemon.connect() as session:
        assert session.interpreters() == []


def test_service_manager_is_notified_of_start_reload_watchdog_and_stop(
    start_daemon: StartDaemon, manager: Manager
):
    watched = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}
    daemon = start_daemon(workers=0, environment=watched)
    assert manager.receive() == f"READY=1\nSTATUS=listening on {daemon.address}"
    manager.receive_watchdog()
    manager.receive_watchdog()
    daemon.signal(signal.SIGHUP)
    reloading = manager.receive().splitlines()
    assert reloading[0] == "RELOADING=1"
    assert reloading[1].startswith("MONOTONIC_USEC=")
    assert manager.receive().startswith("READY=1\n")
    daemon.signal(signal.SIGTERM)
    assert manager.receive() == "STOPPING=1"
    assert daemon.wait() == 0


def test_hangup_during_the_start_does_not_make_it_ready(
    manager: Manager, write_library: WriteLibrary, tmp_path: Path
):
    text = f"""
import pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
(folder / "begun").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
from opdispatch import Library
Library("slow", "DEF").define("f() -> ()")
"""
    slow = str(write_library("slow", text))
    environment = {"NOTIFY_SOCKET": manager.path}
    daemon = RunningDaemon(tmp_path, "--library", slow, workers=1, environment=environment)
    try:
        assert wait_for((tmp_path / "begun").exists)
        daemon.signal(signal.SIGHUP)
        assert wait_for(lambda: "the configuration was read again" in daemon.log())
        (tmp_path / "go").touch()
        daemon.wait_until_ready()
        assert manager.receive() == f"READY=1\nSTATUS=listening on {daemon.address}"
    finally:
        daemon.clean_up()


def test_service_manager_is_no_matter_of_libraries(
    start_daemon: StartDaemon, manager: Manager, write_library: WriteLibrary
):
    text = """
import os
from opdispatch import Library
lib = Library("env", "DEF")
lib.define("names() -> str")
lib.impl("names", lambda: " ".join(os.environ), "CompositeImplicitAutograd")
"""
    daemon = start_daemon(workers=1, environment={"NOTIFY_SOCKET": manager.path})
    with daemon.connect() as session:
        session.load(write_library("env", text))
        assert "NOTIFY_SOCKET" not in session.call("env::names").split()
