"""Other users of the machine: sockets and folders of theirs in places where ours should be."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import opdispatch_client as oc
from opdispatch_client import aio
from tests.service.command_line import run_cli
from tests.service.conftest import StartDaemon
from tests.waits import LONGEST_WAIT, join

OTHER_USER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def listen_as_other_user(path: str, ready: multiprocessing.synchronize.Event, backlog: int) -> None:
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(path)
        squatter.listen(backlog)
        ready.set()
        while True:
            connection, _ = squatter.accept()
            if connection.recv(1):  # a connection that only asks who listens sends nothing
                Path(f"{path}.heard").touch()
            connection.close()


@pytest.fixture
def squatted() -> Iterator[str]:
    """The path of a socket at which another user's process listens, in a folder for all."""
    with tempfile.TemporaryDirectory(prefix="od-") as folder:
        Path(folder).chmod(0o1777)
        path = f"{folder}/daemon.sock"
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        process = context.Process(target=listen_as_other_user, args=(path, ready, 8), daemon=True)
        process.start()
        try:
            assert ready.wait(LONGEST_WAIT)
            yield path
        finally:
            process.kill()
            join(process)


@needs_root
def test_client_refuses_a_socket_of_another_user(squatted: str, tmp_path: Path):
    address = f"unix://{squatted}"
    reason = rf"of user {OTHER_USER} listens at unix://"
    with pytest.raises(oc.UnsafeAddressError, match=reason):
        oc.connect(address)

    async def connect() -> None:
        await aio.connect(address)

    with pytest.raises(oc.UnsafeAddressError, match=reason):
        asyncio.run(connect())
    for words in (["ops"], ["health"], ["worker"]):
        refused = run_cli(*words, "--address", address)
        assert refused.returncode == 1
        assert f"of user {OTHER_USER} listens at {address}" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not Path(f"{squatted}.heard").exists()


def test_a_default_folder_that_others_can_write_to_ends_every_command(tmp_path: Path):
    folder = tmp_path / "opdispatch"
    folder.mkdir()
    folder.chmod(0o777)
    for words in (["serve", "--state", str(tmp_path / "state")], ["worker"], ["ops"], ["health"]):
        refused = run_cli(*words, XDG_RUNTIME_DIR=str(tmp_path))
        assert refused.returncode == 1, refused.stderr
        assert f"{folder} should be a folder that only you can write to" in refused.stderr
        assert "Traceback" not in refused.stderr
    assert not [*folder.iterdir()]


def test_a_link_in_the_place_of_a_lock_ends_the_start(tmp_path: Path):
    (tmp_path / "daemon.sock.lock").symlink_to(tmp_path / "precious")
    address = f"unix://{tmp_path}/daemon.sock"
    refused = run_cli("serve", "--listen", address, "--state", str(tmp_path / "state"))
    assert refused.returncode == 1
    assert "daemon.sock.lock is a symbolic link" in refused.stderr
    assert not (tmp_path / "precious").exists()


def test_daemon_on_a_port_warns_of_other_users(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0, listen=["127.0.0.1:0"])
    said = [record["message"] for record in daemon.log_records() if "open to any" in str(record)]
    assert [message.partition(" is open")[0] for message in said] == daemon.addresses
    assert all("any user of this machine" in message for message in said)


def test_daemon_at_a_socket_logs_no_warning(start_daemon: StartDaemon):
    assert "open to any" not in start_daemon(workers=0).log()
