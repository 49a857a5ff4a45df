"""The daemon's own worker interpreters: started, watched, restarted, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from opdispatch_server.blame.lock_holder import DUMP_SIGNAL
from opdispatch_server.daemon.processes.template import ChildProcess, Template, TemplateLostError
from opdispatch_server.daemon.processes.worker_output import LineProtocol, WorkerOutput
from opdispatch_server.device_discovery import NO_DEVICE_STATUS
from opdispatch_server.fork_guard import NO_FORK_SUPPORT
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.process_watch import (
    ProcessEnd,
    describe_exit,
    has_process_descriptors,
)
from opdispatch_wire.errors import InterpreterNotFoundError

LOG = logging.getLogger("opdispatch.supervisor")

T = TypeVar("T")

LAST_OUTPUT_WAIT = 0.5
FIRST_DELAY = 0.1
SHORTEST_DELAY = 0.01
# An interpreter that has never been ready is started at most this often in a row.
START_ATTEMPTS = 5
# How long an interpreter may take to print the stacks of its threads.
DUMP_WAIT = 0.1
LONGEST_DELAY = 10.0
# An interpreter that was ready for this long had no trouble starting: its successor starts at once.
HEALTHY_AFTER = 3.0


class WorkerCommand(NamedTuple):
    """How to start an interpreter's process.

    ``python`` is a command line to which ``arguments`` are added; ``is_own`` says that it is the
    daemon's own Python, in place of which a template may fork.
    """

    python: Sequence[str]
    arguments: Sequence[str]
    is_own: bool


class WorkerProcess:
    """One process of a worker: its output is logged, and the last lines are kept."""

    def __init__(self, name: str, process: ChildProcess, lifeline: int) -> None:
        self.name = name
        self.process = process
        self._lines = WorkerOutput(name, asyncio.get_running_loop().time)
        self._lifeline = lifeline
        self.is_dying = False  # it is being killed

    @classmethod
    async def start(
        cls, name: str, command: WorkerCommand, template: Template | None = None
    ) -> WorkerProcess:
        """Start the command in a new session, forked from ``template`` if that fits.

        Raises OSError.
        """
        # Nothing is written to stdin: its end tells the interpreter that the daemon is gone.
        child_in, lifeline = os.pipe()
        try:
            output, child_out = os.pipe()
        except BaseException:
            os.close(child_in)
            os.close(lifeline)
            raise
        try:
            process = await _start_process(command, template, child_in, child_out)
        except BaseException:
            os.close(lifeline)
            os.close(output)
            raise
        finally:
            os.close(child_in)
            os.close(child_out)
        worker = cls(name, process, lifeline)
        try:
            await worker._follow_output(output)
        except BaseException:
            worker.signal(signal.SIGKILL)
            os.close(lifeline)
            await process.wait()
            raise
        return worker

    @property
    def tail(self) -> Sequence[str]:
        """The last lines of its output."""
        return tuple(self._lines.tail)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    async def wait(self) -> int:
        """Wait until the whole process group has ended; return the exit status."""
        status = await self.process.wait()
        self.signal(signal.SIGKILL)  # processes that kernels started and left behind
        os.close(self._lifeline)
        with contextlib.suppress(TimeoutError):  # a daemonized child may hold the pipe open
            await asyncio.wait_for(self._protocol.ended.wait(), LAST_OUTPUT_WAIT)
        self._output.close()
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and everything that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    async def _follow_output(self, descriptor: int) -> None:
        pipe = os.fdopen(descriptor, "rb", buffering=0)
        try:
            self._output, self._protocol = await asyncio.get_running_loop().connect_read_pipe(
                lambda: LineProtocol(self._lines), pipe
            )
        except BaseException:
            pipe.close()
            raise


class WorkerEnd(NamedTuple):
    """How one process ended: in words, when, and its exit status, or None if it never started."""

    how: str
    at: float
    status: int | None


@dataclass(slots=True)
class WorkerRecord:
    """The state of one name, across the processes that had it."""

    restarts: int = 0
    # Consecutive deaths, each before the process had been ready for a while.
    early_deaths: int = 0
    # Why it is not restarted, in words; empty while it is.
    quarantine: str = ""
    # The last output lines of the process that ended most recently.
    tail: Sequence[str] = ()
    # Whether a process of this name found its device.
    was_ready: bool = False
    # When the current process became ready, and whether the daemon is ending it.
    ready_at: float | None = None
    excused: bool = False
    quarantined: asyncio.Event = field(default_factory=asyncio.Event)
    revived: asyncio.Event = field(default_factory=asyncio.Event)
    # It is to end for good.
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Keeps one process running for each of ``names``; ``command_for`` says how to start it.

    A process that dies is restarted, after a pause that doubles while it keeps dying before it has
    been ready for a while. A process that has never been ready and dies too often in a row is
    quarantined: it is not restarted until ``revive``. So is, at once, one whose device has never
    been there. With ``quarantine_after``, that many early deaths in a row suffice even for a
    process that has been ready; with 0, no process is ever quarantined. ``on_ended`` is called with
    name, process id and kind of end of each process that has ended; ``on_quarantined`` when one is
    not restarted.
    """

    def __init__(
        self,
        names: Sequence[str],
        command_for: Callable[[str], WorkerCommand],
        *,
        template: Template | None = None,
        quarantine_after: int | None = None,
        on_ended: Callable[[str, int, ProcessEnd], None] = lambda name, pid, how: None,
        on_quarantined: Callable[[], None] = lambda: None,
    ) -> None:
        self.names = tuple(names)
        self._command_for = command_for
        self._template = template
        self._quarantine_after = quarantine_after
        self._on_ended = on_ended
        self._on_quarantined = on_quarantined
        self._records = {name: WorkerRecord() for name in names}
        self._running: dict[str, WorkerProcess] = {}
        # Done once the process of that name is in ``_running``, or could not be started.
        self._starting: dict[str, asyncio.Future[None]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._stopping = False

    def start(self) -> None:
        """Start the processes, and keep them running until ``stop``."""
        if sys.version_info < (3, 12) and has_process_descriptors():
            # As later versions of Python do by default. Here each process would otherwise need a
            # thread, which the system may refuse; the process, already running, would then have no
            # owner.
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(asyncio.get_running_loop())
            asyncio.get_event_loop_policy().set_child_watcher(watcher)
        for name in self.names:
            self._start_keeping(name)

    def add(self, name: str) -> None:
        """Keep one more process running, under a name that no other has; not while stopping."""
        if self._stopping:
            return
        self.names = (*self.names, name)
        self._records[name] = WorkerRecord()
        self._start_keeping(name)

    async def remove(self, name: str, grace: float) -> None:
        """End the process of that name for good, as ``stop`` ends all; then the name is free."""
        keeper = self._keepers.get(name)
        if keeper is None:
            return
        record = self._records[name]
        record.dismissed.set()
        record.revived.set()
        if worker := self._running.get(name):
            worker.signal(signal.SIGTERM)
        await asyncio.wait({keeper}, timeout=grace)
        self.kill(name)
        await asyncio.wait({keeper})
        self._keepers.pop(name, None)
        self._records.pop(name, None)
        self.names = tuple(other for other in self.names if other != name)

    def kill(self, name: str, *, dumps: bool = False) -> None:
        """Kill the process of that name, if the daemon runs it, at once; it is restarted.

        With ``dumps``, it first prints the stacks of its threads.
        """
        worker = self._running.get(name)
        if worker is None or worker.is_dying:
            return
        worker.is_dying = True
        if not dumps:
            worker.signal(signal.SIGKILL)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, DUMP_SIGNAL)
        asyncio.get_running_loop().call_later(DUMP_WAIT, worker.signal, signal.SIGKILL)

    def kill_all(self) -> None:
        """End every process at once, without waiting."""
        self._stopping = True
        for worker in self._running.values():
            worker.signal(signal.SIGKILL)

    def pid_of(self, name: str) -> int | None:
        """Return the process id of that name; None if it has no process now."""
        worker = self._running.get(name)
        return worker.pid if worker else None

    async def find_pid(self, name: str) -> int | None:
        """Return the process id of that name like ``pid_of``, once a start in progress is over.

        An interpreter forked from the template may connect before the template's answer is read.
        """
        while (starting := self._starting.get(name)) is not None:
            await asyncio.shield(starting)
        return self.pid_of(name)

    def record_of(self, name: str) -> WorkerRecord | None:
        """Return the state of one of ``names``; read-only."""
        return self._records.get(name)

    def quarantined(self) -> list[str]:
        """Return the names that are not restarted, sorted."""
        return sorted(name for name, record in self._records.items() if record.quarantine)

    async def wait_quarantined(self, name: str) -> str:
        """Wait until one of ``names`` is not restarted; return why, in words."""
        record = self._records[name]
        await record.quarantined.wait()
        return record.quarantine

    async def unless_quarantined(self, awaited: Awaitable[T]) -> tuple[T | None, str]:
        """Return the result of ``awaited``.

        If one of ``names`` stops being restarted first, return a sentence that says so.
        """
        result = asyncio.ensure_future(awaited)
        ends = {asyncio.ensure_future(self.wait_quarantined(name)): name for name in self.names}
        try:
            await asyncio.wait({result, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return result.result(), ""
            end = next(end for end in ends if end.done())
            return None, f"interpreter {ends[end]} cannot be started: {end.result()}"
        finally:
            for task in (result, *ends):
                task.cancel()

    def last_lines(self, name: str) -> Sequence[str]:
        """Return the last lines printed by the process of that name, or by its predecessor."""
        if worker := self._running.get(name):
            return worker.tail
        record = self._records.get(name)
        return record.tail if record else ()

    def note_ready(self, name: str) -> None:
        """Record that the process of that name is ready, if the daemon runs it."""
        if record := self._records.get(name):
            record.ready_at = asyncio.get_running_loop().time()
            record.was_ready = True

    def excuse(self, name: str) -> None:
        """Excuse the end of the process of that name, for which another cause is known.

        It is restarted at once.
        """
        if record := self._records.get(name):
            record.excused = True

    def revive(self, name: str) -> bool:
        """Restart a quarantined process; return False if it is not quarantined.

        Raises InterpreterNotFoundError.
        """
        record = self._records.get(name)
        if record is None:
            known = ", ".join(self._records) or "none"
            raise InterpreterNotFoundError(
                f"the daemon runs no interpreter named {name!r} itself; those it runs: {known}",
                interpreter=name,
            )
        if not record.quarantine:
            return False
        record.quarantine = ""
        record.quarantined.clear()
        record.early_deaths = 0
        record.revived.set()
        return True

    async def stop(self, grace: float) -> None:
        """End every process: ask, wait for up to ``grace`` seconds, then kill. Idempotent."""
        self._stopping = True
        for name, keeper in self._keepers.items():
            if name not in self._running:
                keeper.cancel()  # it may be waiting before the next start
        for worker in list(self._running.values()):
            worker.signal(signal.SIGTERM)
        if self._keepers:
            _, late = await asyncio.wait(self._keepers.values(), timeout=grace)
            if late:
                self.kill_all()
                await asyncio.wait(late)
        self._keepers = {}
        if self._template is not None:
            await self._template.close()

    def _start_keeping(self, name: str) -> None:
        self._keepers[name] = asyncio.create_task(self._keep(name))

    def _is_wanted(self, name: str) -> bool:
        return not self._stopping and not self._records[name].dismissed.is_set()

    async def _keep(self, name: str) -> None:
        record = self._records[name]
        delay = FIRST_DELAY
        while True:
            record.ready_at, record.excused = None, False
            end = await self._run_once(name)
            if not self._is_wanted(name):
                return
            is_healthy = record.ready_at is not None and end.at - record.ready_at > HEALTHY_AFTER
            if is_healthy:
                record.early_deaths = 0
            if is_healthy or record.excused:
                delay = SHORTEST_DELAY
            else:
                delay = max(delay, FIRST_DELAY)
                record.early_deaths += 1
            if why := self._why_not_again(record, end):
                await self._quarantine(name, record, why)
                delay = FIRST_DELAY
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(record.dismissed.wait(), delay)
                delay = min(2 * delay, LONGEST_DELAY)
            if not self._is_wanted(name):
                return
            record.restarts += 1

    def _why_not_again(self, record: WorkerRecord, end: WorkerEnd) -> str:
        """Return why a process that ended this way is not restarted; "" if it is."""
        limit = self._quarantine_after
        if limit is None:
            # A process that was ready once can be ready again: it is restarted without limit, with
            # pauses.
            limit = 0 if record.was_ready else START_ATTEMPTS
        if not limit:
            return ""
        if end.status == NO_DEVICE_STATUS and not record.was_ready and record.tail:
            # the device will not be there the next time either
            return record.tail[-1].removeprefix("ERROR ")
        if record.early_deaths < limit:
            return ""
        return (
            f"it died {record.early_deaths} times in a row soon after its start; the last time it "
            f"{end.how}"
        )

    async def _quarantine(self, name: str, record: WorkerRecord, why: str) -> None:
        """Wait for ``revive``."""
        record.revived.clear()
        record.quarantine = why
        record.quarantined.set()
        self._on_quarantined()
        LOG.error(
            "interpreter %s is quarantined: %s; `opdispatch revive %s` starts it again",
            name,
            record.quarantine,
            name,
            extra=fields(Event.INTERPRETER_QUARANTINED, interpreter=name),
        )
        await record.revived.wait()

    async def _run_once(self, name: str) -> WorkerEnd:
        """Run one process from start to end."""
        loop = asyncio.get_running_loop()
        self._starting[name] = loop.create_future()
        try:
            command = self._command_for(name)
            worker = await WorkerProcess.start(name, command, self._template)
            self._running[name] = worker
        except OSError as error:
            failed = fields(Event.INTERPRETER_FAILED, interpreter=name)
            LOG.error("interpreter %s cannot be started: %s", name, error, extra=failed)
            self._records[name].tail = ()
            return WorkerEnd(f"could not be started ({error})", loop.time(), None)
        finally:
            self._starting.pop(name).set_result(None)
        if not self._is_wanted(name):
            worker.signal(signal.SIGKILL)
        try:
            status = await worker.process.wait()
            how = describe_exit(status)
            ended_at = loop.time()
            self._on_ended(name, worker.pid, how)
            await worker.wait()
        finally:
            self._records[name].tail = worker.tail
            del self._running[name]
        if self._is_wanted(name):
            tail = "\n    ".join(worker.tail) or "(it printed nothing)"
            ended = fields(Event.INTERPRETER_ENDED, interpreter=name)
            LOG.error("interpreter %s %s; its last output:\n    %s", name, how, tail, extra=ended)
        return WorkerEnd(how.words, ended_at, status)


async def _start_process(
    command: WorkerCommand, template: Template | None, stdin: int, output: int
) -> ChildProcess:
    if template is not None and command.is_own:
        try:
            return await template.start(command.arguments, stdin=stdin, output=output)
        except TemplateLostError as error:
            LOG.warning(
                "%s; an interpreter is started without it",
                error,
                extra=fields(Event.INTERPRETER_FAILED),
            )
    return await asyncio.create_subprocess_exec(
        *command.python,
        *command.arguments,
        stdin=stdin,
        stdout=output,
        stderr=output,
        start_new_session=True,
        env={**os.environ, **NO_FORK_SUPPORT, "PYTHONUNBUFFERED": "1"},
    )
