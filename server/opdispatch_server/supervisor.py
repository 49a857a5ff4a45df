"""The daemon's own worker interpreters: started, watched, started again, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence

LOG = logging.getLogger("opdispatch.supervisor")

OUTPUT_LINES_KEPT = 50
OUTPUT_LINE_LIMIT = 4096
LAST_OUTPUT_WAIT = 0.5
FIRST_DELAY = 0.1
LONGEST_DELAY = 10.0
# An interpreter that lived this long had no trouble starting: its successor starts at once.
HEALTHY_AFTER = 30.0


class WorkerProcess:
    """One process of a worker: what it prints goes to the log, its last lines are kept."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self.name = name
        self.process = process
        self.tail: deque[str] = deque(maxlen=OUTPUT_LINES_KEPT)
        self._lifeline = lifeline
        self._output_ended = asyncio.Event()

    @classmethod
    async def start(cls, name: str, command: Sequence[str]) -> WorkerProcess:
        """Starts ``command`` in a session of its own. Raises OSError."""
        # stdin is never written to: its end tells the interpreter that the daemon is gone.
        child_in, lifeline = os.pipe()
        output, child_out = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=child_in,
                stdout=child_out,
                stderr=child_out,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except BaseException:
            os.close(lifeline)
            os.close(output)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        worker = cls(name, process, lifeline)
        await worker._follow_output(output)
        return worker

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    async def wait(self) -> int:
        """Waits for the end; then nothing of the process group is left. Its exit status."""
        status = await self.process.wait()
        self.signal(signal.SIGKILL)  # what kernels have started and left behind
        os.close(self._lifeline)
        with contextlib.suppress(TimeoutError):  # a daemon of theirs may hold the pipe open
            await asyncio.wait_for(self._output_ended.wait(), LAST_OUTPUT_WAIT)
        self._output.close()
        return status

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and everything it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    async def _follow_output(self, descriptor: int) -> None:
        self._output, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: _LineProtocol(self._take_line, self._output_ended),
            os.fdopen(descriptor, "rb", buffering=0),
        )

    def _take_line(self, line: str) -> None:
        self.tail.append(line)
        LOG.info("%s: %s", self.name, line)


class _LineProtocol(asyncio.Protocol):
    """Cuts a stream of bytes into lines; one without an end is cut at the limit."""

    def __init__(self, take: Callable[[str], None], ended: asyncio.Event) -> None:
        self._take = take
        self._ended = ended
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > OUTPUT_LINE_LIMIT:
            lines.append(self._rest[:OUTPUT_LINE_LIMIT])
            self._rest = self._rest[OUTPUT_LINE_LIMIT:]
        for line in lines:
            self._take(line[: 2 * OUTPUT_LINE_LIMIT].decode(errors="backslashreplace").rstrip())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._take(self._rest.decode(errors="backslashreplace"))
        self._ended.set()


class Supervisor:
    """Keeps one process running for each of ``names``; ``command_for`` says how to start it."""

    def __init__(self, names: Sequence[str], command_for: Callable[[str], Sequence[str]]) -> None:
        self.names = tuple(names)
        self.restarts = dict.fromkeys(names, 0)
        self._command_for = command_for
        self._running: dict[str, WorkerProcess] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self) -> None:
        """Starts the processes, and keeps them running until ``stop``."""
        self._keepers = {name: asyncio.create_task(self._keep(name)) for name in self.names}

    def kill(self, name: str) -> None:
        """Ends the process of that name, if it is one of ours, at once; a new one follows."""
        if worker := self._running.get(name):
            worker.signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """Ends every process at once, without waiting."""
        self._stopping = True
        for worker in self._running.values():
            worker.signal(signal.SIGKILL)

    def pid_of(self, name: str) -> int | None:
        """The process id of that name; None if there is none now."""
        worker = self._running.get(name)
        return worker.pid if worker else None

    async def stop(self, grace: float) -> None:
        """Ends every process: asks, waits for up to ``grace`` seconds, then kills. Idempotent."""
        self._stopping = True
        for name, keeper in self._keepers.items():
            if name not in self._running:
                keeper.cancel()  # it waits before the next start
        for worker in list(self._running.values()):
            worker.signal(signal.SIGTERM)
        if not self._keepers:
            return
        _, late = await asyncio.wait(self._keepers.values(), timeout=grace)
        if late:
            self.kill_all()
            await asyncio.wait(late)
        self._keepers = {}

    async def _keep(self, name: str) -> None:
        delay = FIRST_DELAY
        loop = asyncio.get_running_loop()
        while not self._stopping:
            started = loop.time()
            await self._run_once(name)
            if self._stopping:
                return
            delay = FIRST_DELAY if loop.time() - started > HEALTHY_AFTER else delay
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)
            self.restarts[name] += 1

    async def _run_once(self, name: str) -> None:
        try:
            worker = await WorkerProcess.start(name, self._command_for(name))
        except OSError as error:
            LOG.error("interpreter %s cannot be started: %s", name, error)
            return
        self._running[name] = worker
        if self._stopping:
            worker.signal(signal.SIGKILL)
        try:
            status = await worker.wait()
        finally:
            del self._running[name]
        if not self._stopping:
            tail = "\n    ".join(worker.tail) or "(it printed nothing)"
            LOG.error("interpreter %s %s; its last output:\n    %s", name, _ended(status), tail)


def _ended(status: int) -> str:
    """How a process of that exit status ended, in words."""
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"
