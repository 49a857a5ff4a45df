"""Daemons that are forked from a process which has imported all that a daemon consists of.

Most of what it costs to start a daemon is the import of some 800 modules. A process that has done
that, ``daemon_template``, is asked for forks over its standard input. Each is what ``python -m
opdispatch_client.cli`` would be, or ``python -c``, with the environment, the folder and the streams
that are asked for, and a child of the process that asked.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tests.waits import LONGEST_WAIT

MARK = "OPDISPATCH_TEST_MARK"
"""The variable that tells the processes of one daemon from all others; see RunningDaemon."""
MARK_LENGTH = 32
READ_LATE = {MARK, "OPDISPATCH_ADDRESS", "OPDISPATCH_FAULT"}
REPLY_BYTES = 64
SET_CHILD_SUBREAPER = 36
# That of the tests' process, before a test has changed it for itself.
ENVIRONMENT = dict(os.environ)
PROGRAM = Path(__file__).with_name("daemon_template.py")


class ForkedProcess:
    """The command line, or code, in a process, with as much of subprocess.Popen as tests use.

    ``constants`` are values of modules that it changes first, by ``"package.module.NAME"``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: dict[str, str],
        cwd: Path,
        stderr: IO[bytes],
        code: str | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        output, stdout = os.pipe()
        request = {
            "arguments": arguments,
            "environment": env,
            "folder": str(cwd),
            "code": code,
            "constants": dict(constants or {}),
        }
        try:
            self.pid = _template().fork(request, stdout, stderr.fileno())
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(stdout)
        self.stdout = os.fdopen(output, "rb", buffering=0)
        self.returncode: int | None = None
        self._stderr = stderr
        self._printed = b""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended = select.select([descriptor], [], [], timeout)[0]
            finally:
                os.close(descriptor)
            if not ended or self.poll() is None:
                raise subprocess.TimeoutExpired(f"forked process {self.pid}", timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[bytes, bytes]:
        """Return what it printed, and its errors, once it has ended. Raises as ``wait`` does."""
        if not self.stdout.closed:
            with self.stdout, ThreadPoolExecutor(1) as reader:
                reading = reader.submit(self.stdout.read)
                try:
                    self.wait(timeout)
                except BaseException:
                    self.kill()  # or its end would be waited for
                    raise
                self._printed = reading.result(timeout)
        return self._printed, self.errors()

    def errors(self) -> bytes:
        """Return its errors so far, from the file for them."""
        number = self._stderr.fileno()
        return os.pread(number, os.fstat(number).st_size, 0)


def run_code(code: str, *, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Return how ``python -c CODE`` has ended, and what it printed."""
    return _run(["-c", code], env=env, cwd=cwd, code=code)


def run_command_line(
    words: Sequence[str], *, env: dict[str, str], cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Return how ``opdispatch WORDS`` has ended, and what it printed."""
    return _run(["-m", "opdispatch_client.cli", *words], env=env, cwd=cwd, words=words)


@contextmanager
def running_command_line(
    words: Sequence[str], *, env: dict[str, str], cwd: Path
) -> Iterator[ForkedProcess]:
    """Start ``opdispatch WORDS``, and ask it to end when the block does."""
    assert can_fork(env)
    with tempfile.TemporaryFile() as errors:
        process = ForkedProcess(words, env=env, cwd=cwd, stderr=errors)
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=LONGEST_WAIT)


def _run(
    options: Sequence[str],
    *,
    env: dict[str, str],
    cwd: Path,
    words: Sequence[str] = (),
    code: str | None = None,
) -> subprocess.CompletedProcess[str]:
    if not can_fork(env):
        command = [sys.executable, *options]
        return subprocess.run(
            command, env=env, cwd=cwd, capture_output=True, text=True, timeout=LONGEST_WAIT
        )
    with tempfile.TemporaryFile() as errors:
        process = ForkedProcess(words, env=env, cwd=cwd, stderr=errors, code=code)
        try:
            printed, told = process.communicate(LONGEST_WAIT)
        finally:
            process.kill()
            status = process.wait(LONGEST_WAIT)
        return subprocess.CompletedProcess(options, status, printed.decode(), told.decode())


def can_fork(environment: dict[str, str]) -> bool:
    """Whether a fork with this environment would be as if it had been started with it.

    Variables that are read as modules are imported have been read by then.
    """
    return sys.platform == "linux" and _read_early(environment) == _template().read_early


class _Template:
    """The process that daemons are forked from, seen from the process that runs tests."""

    def __init__(self) -> None:
        self.read_early = _read_early(ENVIRONMENT)
        self._turn = threading.Lock()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROGRAM), MARK],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            env={**ENVIRONMENT, MARK: "-" * MARK_LENGTH},
            start_new_session=True,
        )
        theirs.close()
        self._channel.settimeout(LONGEST_WAIT)
        atexit.register(self._close)

    def fork(self, request: dict[str, Any], *descriptors: int) -> int:
        """Return the process id of a new child of this process, which has the descriptors."""
        message = [json.dumps(request).encode()]
        prctl = ctypes.CDLL(None).prctl
        with self._turn:
            # It forks twice, and the process in the middle ends: the fork is then ours.
            prctl(SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._channel, message, descriptors)
                return int(self._channel.recv(REPLY_BYTES))
            finally:
                prctl(SET_CHILD_SUBREAPER, 0)

    def _close(self) -> None:
        self._channel.close()
        self._process.wait(LONGEST_WAIT)


@functools.cache
def _template() -> _Template:
    return _Template()


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "GRPC_", "OPDISPATCH_")) and name not in READ_LATE
    }
