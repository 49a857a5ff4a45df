"""The daemon's own worker interpreters: started, watched, restarted, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from opdispatch_server.blame.lock_holder import DUMP_SIGNAL
from opdispatch_server.daemon.processes.launched_worker import WorkerCommand, WorkerProcess
from opdispatch_server.daemon.processes.restart_policy import (
    FIRST_PAUSE,
    WorkerEnd,
    WorkerRecord,
    pause_after,
    why_not_again,
)
from opdispatch_server.daemon.processes.template import Template
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.process_watch import (
    ProcessEnd,
    describe_exit,
    has_process_descriptors,
)
from opdispatch_wire.errors import InterpreterNotFoundError

LOG = logging.getLogger("opdispatch.supervisor")

T = TypeVar("T")

# How long an interpreter may take to print the stacks of its threads.
DUMP_WAIT = 0.1


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
        while True:
            record.ready_at, record.excused = None, False
            end = await self._run_once(name)
            if not self._is_wanted(name):
                return
            pause = pause_after(record, end)
            if why := why_not_again(record, end, self._quarantine_after):
                await self._quarantine(name, record, why)
                record.pause = FIRST_PAUSE
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(record.dismissed.wait(), pause)
            if not self._is_wanted(name):
                return
            record.restarts += 1

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
