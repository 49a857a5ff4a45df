"""A daemon of one's own: started for the occasion, and stopped after it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opdispatch_wire.errors import DaemonUnavailableError

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_READY = b"listening on"


@contextmanager
def private_daemon(*, workers: int) -> Iterator[str]:
    """Runs a daemon with that many interpreters; gives its address.

    Raises DaemonUnavailableError if it does not start; the message has what it said last.
    """
    with tempfile.TemporaryDirectory(prefix="opdispatch-stress-") as folder:
        address = f"unix://{folder}/daemon.sock"
        with (Path(folder) / "log").open("wb") as log:
            # A session of its own: Ctrl-C is for the race, which then stops its daemon.
            daemon = subprocess.Popen(
                _command(address, workers, folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            _await_ready(daemon, Path(folder) / "log")
            yield address
        finally:
            _stop(daemon)


def _command(address: str, workers: int, folder: str) -> list[str]:
    return [
        *(sys.executable, "-m", "opdispatch_client.cli", "serve"),
        *("--listen", address, "--workers", str(workers), "--state", f"{folder}/state"),
    ]


def _await_ready(daemon: subprocess.Popen[bytes], log: Path) -> None:
    assert daemon.stdout is not None  # a pipe, by construction
    output = b""
    deadline = time.monotonic() + _START_SECONDS
    while _READY not in output:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([daemon.stdout], [], [], max(left, 0))
        chunk = os.read(daemon.stdout.fileno(), 4096) if readable else b""
        if not chunk:
            lines = log.read_text(errors="replace").strip().splitlines()
            raise DaemonUnavailableError(
                f"the private daemon did not start: {lines[-1] if lines else 'it said nothing'}"
            )
        output += chunk


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    finally:
        if daemon.stdout is not None:
            daemon.stdout.close()
