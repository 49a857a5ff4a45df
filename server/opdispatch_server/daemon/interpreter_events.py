"""Reactions to interpreters that connect, end, become busy, or become unfit to run kernels."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.board.health import HealthBoard
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.lost_replies import busy_error
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.termination import InterpreterEnds
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.daemon")

# How long an interpreter that is to be replaced may finish its calls, and how often the daemon
# checks whether it has.
UNFIT_GRACE = 1.0
UNFIT_LOOK = 0.02


class InterpreterEvents:
    """Reports each event of an interpreter to the parts concerned. For the event loop only."""

    def __init__(
        self,
        supervisor: Supervisor,
        pools: InterpreterPools,
        health: HealthBoard,
        blame: Blame,
        ends: InterpreterEnds,
        libraries: LibraryRegistry,
        queues: InterpreterQueues,
        runs: KernelRuns,
    ) -> None:
        self._supervisor = supervisor
        self._pools = pools
        self._health = health
        self._blame = blame
        self._ends = ends
        self._libraries = libraries
        self._queues = queues
        self._runs = runs
        self._replacing: set[asyncio.Task[None]] = set()

    async def ready(self, session: InterpreterSession) -> None:
        """Make an interpreter that is ready available to libraries and probes."""
        self._supervisor.note_ready(session.name)
        await self._health.interpreter(session.name, serving=True)

    async def lost(self, session: InterpreterSession) -> None:
        """Update health checks at once; updating the registry may take longer."""
        await self._health.interpreters(len(self._pools.ready(None)))
        # The daemon restarts its own interpreters, except those that are no longer needed.
        serving = False if session.supervised and not session.dismissed else None
        await self._health.interpreter(session.name, serving=serving)
        for library in self._libraries.catalog.newest():
            await self._health.library(library.name, serving=library.is_serving)

    def quarantined(self) -> None:
        """Update health checks after an interpreter was quarantined: it is not restarted."""
        self._blame.refresh()
        self._libraries.interpreter_quarantined()

    def busy(self, session: InterpreterSession) -> None:
        """Move other calls away from an interpreter whose interpreter lock is held by a kernel."""
        self._runs.move_from(session)
        if (queue := self._queues.find(session)) is not None:
            queue.send_away(
                session.busy_operators,
                lambda operator: busy_error(session, operator, started="no"),
            )

    def unfit(self, session: InterpreterSession, problem: str) -> None:
        """Replace an interpreter that can no longer run kernels, once its calls have ended."""
        LOG.error(
            "interpreter %s is replaced: %s",
            session.name,
            problem,
            extra=fields(Event.INTERPRETER_UNFIT, interpreter=session.name),
        )
        self._blame.judge_unfit(session)
        self._libraries.fitness_changed()
        task = asyncio.create_task(self._replace(session, problem))
        self._replacing.add(task)
        task.add_done_callback(self._replacing.discard)

    async def _replace(self, session: InterpreterSession, problem: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNFIT_GRACE):
                while session.alive and session.has_calls:
                    await asyncio.sleep(UNFIT_LOOK)
        self._ends.kill(session, problem, Cause.UNFIT, None)
