"""The file of a daemon's tokens: reread when it changes, and replaced atomically."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from opdispatch_server.access.audit import note
from opdispatch_server.access.token import TokenTable, dump_tokens, parse_tokens
from opdispatch_server.file_sync import sync_path
from opdispatch_server.lock_file import open_lock_file
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.access")

MAX_BYTES = 16 * 2**20


class TokensError(ValueError):
    """A token file is malformed, or not safe to trust; the message is one sentence."""


_Signature = tuple[int, int, int, int]


class TokenFile:
    """The tokens in force, from a file.

    A file that cannot be read or parsed, such as a partially written one, changes nothing: the
    tokens read last stay in force, and the problem is logged once.
    """

    def __init__(self, path: Path) -> None:
        """Read the file. Raises OSError, and TokensError if it is malformed or not safe."""
        self.path = path
        self.table, self._signature = _read(path)
        self._refused: object = None

    def refresh(self) -> bool:
        """Reread the file if it has changed; return whether that changed the tokens in force."""
        try:
            if _signature_of(os.stat(self.path)) == self._signature:
                self._refused = None
                return False
            table, self._signature = _read(self.path)
        except (OSError, TokensError) as error:
            self._refuse(error)
            return False
        self._refused = None
        before, self.table = self.table, table
        _log_changes(self.path, before, table)
        return before.records != table.records

    def _refuse(self, error: Exception) -> None:
        if self._refused != str(error):
            self._refused = str(error)
            LOG.error(
                "the tokens in %s cannot be read, and those that were read last stay in force: %s",
                self.path,
                error,
                extra=fields(Event.TOKENS_REFUSED),
            )


def read_tokens(path: Path) -> TokenTable:
    """Return the tokens of a file. Raises OSError and TokensError."""
    return _read(path)[0]


def change_tokens(path: Path, change: Callable[[TokenTable], TokenTable]) -> None:
    """Replace the tokens of a file, which need not exist, by the result of ``change``.

    Concurrent changes wait. Raises OSError, TokensError, and the errors of ``change``.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(path):
        before = read_tokens(path) if path.exists() else TokenTable()
        after = change(before)
        descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(dump_tokens(after))
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        sync_path(path.parent)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = open_lock_file(path.with_name(path.name + ".lock"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read(path: Path) -> tuple[TokenTable, _Signature]:
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        _check_safe(path, status)
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise TokensError(f"{path} has more than {MAX_BYTES} bytes")
    try:
        return parse_tokens(data.decode()), _signature_of(status)
    except ValueError as error:
        raise TokensError(f"{path}: {error}") from None


def _check_safe(path: Path, status: os.stat_result) -> None:
    """Raise TokensError if other users can write to the file, and so grant themselves tokens."""
    if not stat.S_ISREG(status.st_mode):
        raise TokensError(f"{path} is not a regular file")
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise TokensError(
            f"{path} should be a file that only the daemon's user can write to, but belongs to "
            f"user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}"
        )


def _signature_of(status: os.stat_result) -> _Signature:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _log_changes(path: Path, before: TokenTable, after: TokenTable) -> None:
    # The daemon does not learn who wrote the file: only users who may do anything could.
    for number, record in after.records.items():
        if number not in before.records:
            note(f"add {record.label} with the role {record.role}", str(path))
        elif record != before.records[number]:
            note(f"change {record.label}, with the role {record.role} now", str(path))
    for number, record in before.records.items():
        if number not in after.records:
            note(f"revoke {record.label}", str(path))
