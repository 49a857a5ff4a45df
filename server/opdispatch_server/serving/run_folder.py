"""The private folder of a running daemon, for the sockets between it and its interpreters."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from opdispatch_server.lock_file import open_lock_file
from opdispatch_wire.addresses import MAX_UNIX_PATH_BYTES, grpc_target

_PREFIX = "opdispatch-run-"
_LOCK = "owner.lock"
# The longest name below it: "/opdispatch-run-xxxxxxxx/worker-999.sock.lock"
_ROOM_NEEDED = 50


class RunFolder:
    """A folder of mode 0700 that lives as long as its daemon.

    Its owner holds a lock in it, so that the next daemon can tell the folder of a killed daemon
    from one in use, and remove it.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls) -> RunFolder:
        """Create a new folder below XDG_RUNTIME_DIR, or else in the folder for temporary files."""
        parent = _choose_parent()
        _remove_abandoned(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = open_lock_file(path / _LOCK)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (path / _LOCK).exists():
                return cls(path, lock)
            # Another starting daemon acquired the lock first, and took the folder for an abandoned
            # one.
            os.close(lock)

    def socket(self, name: str) -> str:
        """Return the address of the socket of that name in the folder.

        Raises AddressError if it is too long.
        """
        return grpc_target(f"unix:{self.path / name}")

    def lane(self, name: str) -> str:
        """Return the path of the socket of a local lane in the folder."""
        return str(self.path / f"{name}.lane")

    def remove(self) -> None:
        """Delete the folder and everything in it. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _choose_parent() -> Path:
    """Return the first writable folder that leaves room for a socket's path."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for place in filter(None, places):
        room = MAX_UNIX_PATH_BYTES - len(os.fsencode(place))
        if room >= _ROOM_NEEDED and os.access(place, os.W_OK):
            return Path(place)
    return Path(tempfile.gettempdir())


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        try:
            if path.lstat().st_uid != os.getuid():
                continue
            lock = open_lock_file(path / _LOCK, create=False)
        except OSError:
            continue  # being created or removed at this moment, or not readable
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its daemon is alive
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
