"""One process of a worker interpreter: started by a command or by fork, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from typing import NamedTuple

from opdispatch_server.daemon.processes.template import ChildProcess, Template, TemplateLostError
from opdispatch_server.daemon.processes.worker_output import LineProtocol, WorkerOutput
from opdispatch_server.fork_guard import NO_FORK_SUPPORT
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.supervisor")

LAST_OUTPUT_WAIT = 0.5


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
