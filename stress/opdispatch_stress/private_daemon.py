"""A private daemon, which is started for a race, checked for leaks and then stopped."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from opdispatch_stress.marked_processes import find_marked
from opdispatch_wire.errors import DaemonUnavailableError

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_READY = b"listening on"
_ADDRESSES = 2
_MARK = "OPDISPATCH_STRESS_MARK"


class PrivateDaemon:
    """A daemon and its resources: processes, sockets, open files.

    All its processes inherit an environment variable, by which ``processes`` finds them even if
    their parent has ended.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self.address = f"unix://{folder}/daemon.sock"
        self.tcp_address = ""
        """Its TCP address on loopback; no longer valid after a restart."""
        self._folder = folder
        self._log = folder / "log"
        self._mark = uuid.uuid4().hex
        self._runtime = folder / "run"
        self._runtime.mkdir(mode=0o700)
        self._command = [
            *(sys.executable, "-m", "opdispatch_client.cli", "serve"),
            *("--listen", self.address, "--listen", "127.0.0.1:0", "--workers", str(workers)),
            # The race kills interpreters on purpose; do not quarantine them for it.
            *("--state", f"{folder}/state", "--quarantine", "0"),
        ]
        self._process = self._start()

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the daemon serves requests.

        Raises DaemonUnavailableError, with its last line of output, if it does not start.
        """
        assert self._process.stdout is not None  # a pipe, by construction
        output = b""
        deadline = time.monotonic() + _START_SECONDS
        while output.count(_READY) < _ADDRESSES or not output.endswith(b"\n"):
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._process.stdout], [], [], max(left, 0))
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            if not chunk:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise DaemonUnavailableError(
                    f"the private daemon did not start: {lines[-1] if lines else 'it said nothing'}"
                )
            output += chunk
        self.tcp_address = output.decode().split()[-1]

    def restart(self) -> None:
        """Kill the daemon as a crash would, and restart it on the same state."""
        self._process.kill()
        self._process.wait()
        self._close_output()
        self._process = self._start()
        self.wait_until_ready()

    def stop(self) -> None:
        """Stop the daemon by SIGTERM; kill it if it does not end in time. Idempotent."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._close_output()

    # -- what belongs to it ---------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Return the daemon and every live process that it started: pid and command line."""
        return find_marked(_MARK, self._mark)

    def sockets(self) -> list[str]:
        """Return the paths of its sockets, without its own address."""
        return sorted(path.name for path in self._runtime.glob("*/*.sock"))

    def leftovers(self) -> list[str]:
        """Return the paths left in its runtime folder after it has stopped."""
        return sorted(str(path.relative_to(self._runtime)) for path in self._runtime.iterdir())

    def open_files(self) -> int:
        """Return the number of file descriptors that the daemon itself has open."""
        count: int = psutil.Process(self.pid).num_fds()
        return count

    def shared_segments(self) -> int:
        """Return the number of shared memory segments that its processes have open."""
        return sum(_count_segments(pid) for pid in self.processes())

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            # In a new session, so that Ctrl-C only reaches the race, which then stops the daemon.
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self._runtime), _MARK: self._mark},
                start_new_session=True,
            )

    def _close_output(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()


def _count_segments(pid: int) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            count += os.readlink(path).startswith(("/memfd:", "/dev/shm/"))
        except OSError:
            continue  # closed just now
    return count


@contextmanager
def private_daemon(*, workers: int) -> Iterator[PrivateDaemon]:
    """Run a daemon with that many interpreters. Raises the errors of ``wait_until_ready``."""
    with tempfile.TemporaryDirectory(prefix="opdispatch-stress-") as folder:
        daemon = PrivateDaemon(Path(folder), workers)
        try:
            daemon.wait_until_ready()
            yield daemon
        finally:
            daemon.stop()
