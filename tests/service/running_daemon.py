"""A daemon process for tests: started as a user starts it, and watched until nothing is left."""

from __future__ import annotations

import functools
import json
import math
import os
import selectors
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import opdispatch_client as oc
from opdispatch_server.daemon.state.folder import journal_in
from opdispatch_server.daemon.state.journal_database import DATABASE
from tests.service.warm_daemon import MARK, ForkedProcess, can_fork
from tests.waits import LONGEST_WAIT

LONGEST_PAUSE = 0.05
# How much of its log a failed test shows.
SHOWN_LINES = 150


class RunningDaemon:
    """One daemon. Every process that it starts carries a mark of its own in its environment."""

    alive: ClassVar[list[RunningDaemon]] = []
    """Those that have not been cleaned up yet: a test that fails shows what they have logged."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        workers: int | str = 2,
        listen: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
        program: Sequence[str] | None = None,
        warm: bool = True,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        """Start ``opdispatch serve``, or another Python program that takes its arguments.

        It is forked from a process that has its modules, unless it is not to be ``warm``. In
        ``constants`` are other values for the intervals of modules, by ``"package.module.NAME"``:
        nothing but a test has a reason to choose them. Only where daemons can be forked.
        """
        self.folder = folder
        self.mark = uuid.uuid4().hex
        # Short: the sockets below it have a limit on their path.
        self.runtime_folder = Path(tempfile.mkdtemp(prefix="od-"))
        self.log_path = folder / f"{self.mark}.log"
        self.addresses: list[str] = []
        # What the log is allowed to say; see check_log.
        self.expects_errors = False
        listen = [f"unix://{folder}/daemon.sock"] if listen is None else listen
        arguments = [
            *(part for address in listen for part in ("--listen", address)),
            *("--workers", str(workers), "--state", str(folder / "state")),
            *("--log-format", "json", *options),
        ]
        variables = {
            **os.environ,
            "XDG_RUNTIME_DIR": str(self.runtime_folder),
            "XDG_CONFIG_HOME": str(self.runtime_folder),
            MARK: self.mark,
            **(environment or {}),
        }
        self._listening = len(listen) + ("--http" in options)
        self.process: subprocess.Popen[bytes] | ForkedProcess
        with self.log_path.open("wb") as log:
            if warm and program is None and can_fork(variables):
                self.process = ForkedProcess(
                    ["serve", *arguments],
                    env=variables,
                    cwd=folder,
                    stderr=log,
                    constants=constants,
                )
            else:
                assert not constants, "only a fork can have them"
                program = program or ("-m", "opdispatch_client.cli", "serve")
                self.process = subprocess.Popen(
                    [sys.executable, *program, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=variables,
                    cwd=folder,
                    start_new_session=True,
                )
        self.alive.append(self)

    @property
    def address(self) -> str:
        """The first address it listens on."""
        return self.addresses[0]

    @property
    def url(self) -> str:
        """The address of its page, with ``--http``."""
        return self.addresses[-1]

    def wait_until_ready(self) -> None:
        """Wait for the lines that say where it listens."""
        assert self.process.stdout is not None
        output = b""
        deadline = time.monotonic() + LONGEST_WAIT
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while output.count(b"\n") < self._listening:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    raise TimeoutError(f"the daemon is not ready: {self.log()}")
                chunk = os.read(self.process.stdout.fileno(), 4096)
                if not chunk:
                    raise RuntimeError(f"the daemon did not start: {self.log()}")
                output += chunk
        self.addresses = [line.split()[-1] for line in output.decode().splitlines()]

    def connect(self, **options: Any) -> oc.Session:
        """A session with it; where its timeout is short, a busy machine may need several tries."""
        deadline = time.monotonic() + LONGEST_WAIT
        while True:
            try:
                return oc.connect(self.address, **options)
            except oc.DaemonUnavailableError:
                if options.get("timeout", math.inf) >= 1 or time.monotonic() > deadline:
                    raise

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the daemon, and to it alone."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit status; it must end in time."""
        return self.process.wait(LONGEST_WAIT)

    def stop(self) -> int:
        """Ask it to stop and return its exit status."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def log(self) -> str:
        """Return the log so far."""
        return self.log_path.read_text(errors="replace")

    def end_of_log(self) -> str:
        """Its last lines, for people."""
        return "\n".join(self.log().splitlines()[-SHOWN_LINES:])

    def log_records(self) -> list[dict[str, Any]]:
        """The log, taken apart."""
        lines = self.log().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def processes(self) -> set[int]:
        """Everything alive that it has started, and itself."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"{MARK}={self.mark}".encode() in path.read_bytes():
                    found.add(int(path.parent.name))
            except OSError:
                continue
        return found

    def clean_up(self) -> None:
        """End what is left, and then check that nothing should have been."""
        self.alive.remove(self)
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(LONGEST_WAIT)
            raise
        finally:
            assert self.process.stdout is not None
            self.process.stdout.close()
            left = wait_for(lambda: not self.processes()) or self.processes()
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            sockets = sorted(path.name for path in self.runtime_folder.iterdir())
            shutil.rmtree(self.runtime_folder)
        assert left is True, f"processes are left: {left}; {self.log()}"
        if self.process.returncode != -signal.SIGKILL:
            assert not sockets, f"left behind: {sockets}"
        self.check_log()

    def check_log(self) -> None:
        """Nothing in the log is a mistake of ours."""
        log = self.log()
        assert "never retrieved" not in log, log
        assert "Fatal Python error" not in log or self.expects_errors, log
        if not self.expects_errors:
            # A kernel that raises is a mistake of its library's.
            wrong = [
                record
                for record in self.log_records()
                if (record["level"] == "error" or "traceback" in record)
                and record.get("event") != "kernel_error"
            ]
            assert not wrong, wrong


def wait_for(reached: Callable[[], object], seconds: float = LONGEST_WAIT) -> bool:
    """Whether ``reached()`` becomes true in time. Asks again and again; nothing tells us.

    That it takes so long, only a test that fails ever sees, however busy the machine is. What is
    not reached at once is asked for less and less often: most often a daemon has to answer.
    """
    deadline = time.monotonic() + seconds
    pause, pauses = threading.Event(), 0.002
    while not reached():
        if time.monotonic() > deadline:
            return False
        pause.wait(pauses)
        pauses = min(pauses * 1.5, LONGEST_PAUSE)
    return True


@contextmanager
def journal_held(daemon: RunningDaemon) -> Iterator[None]:
    """The daemon's writes wait, as for a slow disk."""
    path = journal_in(daemon.folder / "state") / DATABASE
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("ROLLBACK")


class Background:
    """Something done in a thread: ``with Background(f, x) as call: ...; call.result()``."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._work = functools.partial(function, *args, **kwargs)
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._outcome.append(self._work())
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Background:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.join(LONGEST_WAIT)

    def result(self) -> Any:
        """Return the function's result, or raise its error."""
        self._thread.join(LONGEST_WAIT)
        assert not self._thread.is_alive(), "it is still running"
        if self._error is not None:
            raise self._error
        return self._outcome[0]
