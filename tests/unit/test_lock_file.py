"""Lock files, in folders that others may write to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from opdispatch_server.daemon.state.folder import StateFolder
from opdispatch_server.lock_file import open_lock_file
from opdispatch_server.serving.listeners import SocketLock
from opdispatch_wire.errors import JournalError


@pytest.mark.parametrize("create", [True, False])
def test_a_link_is_not_followed(tmp_path: Path, create: bool):
    lock, target = tmp_path / "owner.lock", tmp_path / "precious"
    lock.symlink_to(target)
    for exists in (False, True):
        if exists:
            target.write_text("mine")
        with pytest.raises(OSError, match=r"owner\.lock is a symbolic link") as caught:
            open_lock_file(lock, create=create)
        assert caught.value.errno == errno.ELOOP
        assert target.exists() == exists


def test_a_lock_file_is_private_and_not_inherited(tmp_path: Path):
    descriptor = open_lock_file(tmp_path / "owner.lock")
    try:
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_a_state_folder_with_a_link_for_a_lock_is_refused(tmp_path: Path):
    (tmp_path / "owner.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(JournalError, match=r"cannot be used: owner\.lock is a symbolic link"):
        StateFolder(tmp_path)
    assert not (tmp_path / "precious").exists()


def test_a_socket_with_a_link_for_a_lock_is_refused(tmp_path: Path):
    (tmp_path / "daemon.sock.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="is a symbolic link"):
        SocketLock(tmp_path / "daemon.sock")
    assert not (tmp_path / "precious").exists()
