"""Log files of one user alone."""

from __future__ import annotations

import logging
import stat
from contextlib import closing
from pathlib import Path

import pytest

from opdispatch_server.private_file import PrivateFileHandler


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, __file__, 1, message, (), None)


def test_file_that_was_moved_away_is_begun_anew_for_its_owner_alone(tmp_path: Path):
    path = tmp_path / "audit.log"
    with closing(PrivateFileHandler(path)) as handler:
        handler.emit(record("first"))
        path.rename(tmp_path / "audit.log.1")
        handler.emit(record("second"))
    assert (tmp_path / "audit.log.1").read_text() == "first\n"
    assert path.read_text() == "second\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_link_in_the_place_of_the_file_is_refused(tmp_path: Path):
    (tmp_path / "audit.log").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=r"audit\.log"):
        PrivateFileHandler(tmp_path / "audit.log")
    assert not (tmp_path / "other").exists()
