"""The composition root of a daemon: creates each part from the parts that it needs.

``entry_points`` creates what clients and interpreters reach.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

from opdispatch_server.access.route_tickets import RouteTickets
from opdispatch_server.daemon.board.health import (
    HealthBoard,
)
from opdispatch_server.daemon.caller_access import CallerAccess
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.program_router import ProgramRouter
from opdispatch_server.daemon.calls.quotas import QuotaLimits, Quotas
from opdispatch_server.daemon.calls.router import CallRouter
from opdispatch_server.daemon.calls.wait_for_ready import WaitForReady
from opdispatch_server.daemon.environments.interpreter_packages import Bootstrap
from opdispatch_server.daemon.environments.store import EnvironmentStore
from opdispatch_server.daemon.interpreter_events import InterpreterEvents
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.heartbeat_lease import LeaseWatch
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.daemon.interpreters.silence import SilentInterpreters
from opdispatch_server.daemon.interpreters.termination import InterpreterEnds
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.publication import LibraryPublication
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.processes.launched_worker import WorkerCommand
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.daemon.processes.worker_commands import InterpreterEntry, WorkerCommands
from opdispatch_server.daemon.state.folder import libraries_in
from opdispatch_server.daemon.state.journal import Journal
from opdispatch_server.daemon.values.direct_keeps import DirectKeeps
from opdispatch_server.daemon.values.grants import ValueLimits
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_server.daemon_configuration import (
    MESSAGES_PER_QUEUE,
    DaemonConfiguration,
    default_call_bytes,
)
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.logs import set_log_level
from opdispatch_server.serving.run_folder import RunFolder


class DaemonParts:
    """The parts of one daemon, each created on first access.

    Parts that refer to each other receive functions that look the other part up when called.
    Created and used inside an event loop.
    """

    def __init__(
        self, configuration: DaemonConfiguration, folder: RunFolder, entry: InterpreterEntry
    ) -> None:
        self.configuration = configuration
        self.folder = folder
        self._entry = entry
        self._devices = {f"worker-{n + 1}": each for n, each in enumerate(configuration.workers)}
        self.names = tuple(self._devices)
        self.message_limit = configuration.max_message_bytes
        self.max_call_bytes = configuration.max_call_bytes or default_call_bytes()
        self.queue_limits = QueueLimits(
            configuration.queue,
            MESSAGES_PER_QUEUE * self.message_limit,
            QuotaLimits(*configuration.quotas).calls_of_one(configuration.queue),
        )
        self.stop = asyncio.Event()
        """Set to stop the daemon."""
        self.access = CallerAccess(configuration, folder)

    def reconfigure(self, **changes: Any) -> None:
        """Apply new settings by name; each must be one of ``CHANGED_WHILE_RUNNING``."""
        self.configuration = new = self.configuration._replace(**changes)
        set_log_level(new.log_level)
        self.values.limits = ValueLimits(new.remote_values, new.remote_bytes)
        self.store.set_limits(new.max_library_bytes, new.library_disk_bytes)

    # -- calls -----------------------------------------------------------------------------------

    @cached_property
    def router(self) -> CallRouter:
        """The router that forwards each call to an interpreter."""
        return CallRouter(
            self.operators,
            self.libraries,
            self.routes,
            self.queues,
            self.runs,
            self._wait_for_ready,
            self.values,
            self.keeps,
            self._programs,
            self.blame,
            self._alone,
        )

    @cached_property
    def _programs(self) -> ProgramRouter:
        return ProgramRouter(
            self.operators,
            self.libraries,
            self.sessions,
            self.queues,
            self.runs,
            self._wait_for_ready,
            self.values,
            self.blame,
            self._alone,
        )

    @cached_property
    def quotas(self) -> Quotas:
        """The quotas of identities."""
        return Quotas(QuotaLimits(*self.configuration.quotas))

    @cached_property
    def queues(self) -> InterpreterQueues:
        """The queues of calls to interpreters."""
        return InterpreterQueues(self.queue_limits)

    @cached_property
    def runs(self) -> KernelRuns:
        """The kernels that interpreters are running."""
        return KernelRuns(
            self.sessions, self.ends.kill, self.ends.judge, self.configuration.kernel_timeout
        )

    @cached_property
    def _wait_for_ready(self) -> WaitForReady:
        return WaitForReady(self.libraries.availability, self.queue_limits)

    @cached_property
    def _alone(self) -> AloneRuns:
        return AloneRuns(self.queues, self.routes, self.blame.is_cell)

    @cached_property
    def keeps(self) -> DirectKeeps:
        """The values kept by direct calls."""
        return DirectKeeps(self.values)

    @cached_property
    def values(self) -> RemoteValueTable:
        """The table of the values that interpreters keep for clients."""
        return RemoteValueTable(
            ValueLimits(self.configuration.remote_values, self.configuration.remote_bytes)
        )

    # -- libraries -------------------------------------------------------------------------------

    @cached_property
    def libraries(self) -> LibraryRegistry:
        """The registry of libraries, with every operation on them."""
        return LibraryRegistry(
            self._publication,
            self.sessions,
            self.pools,
            self.health,
            self.configuration.load_timeout,
            self.journal,
            self.blame,
        )

    @cached_property
    def _publication(self) -> LibraryPublication:
        return LibraryPublication(
            self.operators,
            self.sessions,
            self.store,
            self.routes,
            self.ends.kill,
            self.ends.judge,
        )

    @cached_property
    def operators(self) -> OperatorRegistry:
        """The operators of all libraries, with their kernels."""
        return OperatorRegistry()

    @cached_property
    def routes(self) -> DirectRoutes:
        """The routes of direct calls."""
        return DirectRoutes(
            self.operators, self.sessions, self.tickets, self.quotas.counts_calls_of
        )

    @cached_property
    def tickets(self) -> RouteTickets:
        """The tickets that authorize direct calls."""
        return RouteTickets(self.access.authentication)

    @cached_property
    def pools(self) -> InterpreterPools:
        """The pools of interpreters that are reserved for some libraries."""
        return InterpreterPools(self.supervisor, self.sessions, self.environments)

    @cached_property
    def store(self) -> LibraryStore:
        """The uploaded files of libraries."""
        return LibraryStore(
            libraries_in(self.configuration.state),
            upload_bytes=self.configuration.max_library_bytes,
            disk_bytes=self.configuration.library_disk_bytes,
        )

    @cached_property
    def journal(self) -> Journal:
        """The journal of the registry, on disk."""
        return Journal(self.configuration.state)

    # -- interpreters ----------------------------------------------------------------------------

    @cached_property
    def health(self) -> HealthBoard:
        """The health status of all services, for probes."""
        return HealthBoard(interpreters_expected=bool(self.names))

    @cached_property
    def sessions(self) -> InterpreterSessions:
        """The sessions of the connected interpreters."""
        sessions = InterpreterSessions()
        sessions.on_ready = lambda session: self.events.ready(session)
        sessions.on_lost = lambda session: self.events.lost(session)
        return sessions

    @cached_property
    def events(self) -> InterpreterEvents:
        """The reactions to interpreters that connect, end or become unfit."""
        return InterpreterEvents(
            self.supervisor,
            self.pools,
            self.health,
            self.blame,
            self.ends,
            self.libraries,
            self.queues,
            self.runs,
        )

    @cached_property
    def ends(self) -> InterpreterEnds:
        """The ends of interpreters: ordered ones, and deaths."""
        return InterpreterEnds(self.sessions, self.supervisor, self.blame, self.stop.is_set)

    @cached_property
    def blame(self) -> Blame:
        """The policy that decides which call brought an interpreter down."""
        return Blame(
            self.live_sessions,
            lambda: self.libraries.placement.names_for_all(),
            lambda operator: self.libraries.catalog.library_of(operator),
            lambda: self.libraries.blame_changed(),
        )

    @cached_property
    def totals(self) -> InterpreterTotals:
        """The totals of interpreters: their counters, and how they ended."""
        return InterpreterTotals()

    @cached_property
    def leases(self) -> LeaseWatch:
        """The watch for interpreters that stop sending heartbeats."""
        return LeaseWatch(self.configuration.heartbeat)

    @cached_property
    def silent(self) -> SilentInterpreters:
        """The interpreters that have stopped sending heartbeats, and how the daemon reacts."""
        return SilentInterpreters(
            self.configuration.heartbeat,
            self.configuration.lock_timeout,
            self.ends.kill,
            self.libraries.fitness_changed,
            self.events.busy,
        )

    # -- their processes -------------------------------------------------------------------------

    @cached_property
    def supervisor(self) -> Supervisor:
        """The supervisor of the daemon's own interpreter processes."""
        return Supervisor(
            self.names,
            self._command_for,
            template=self._entry.template,
            quarantine_after=self.configuration.quarantine_after,
            on_ended=lambda name, pid, how: self.ends.process_ended(name, pid, how),
            on_quarantined=lambda: self.events.quarantined(),
        )

    def _command_for(self, name: str) -> WorkerCommand:
        device, python = self._devices.get(name, ""), self.pools.python_of(name)
        return self._commands.command_for(name, device, python)

    @cached_property
    def _commands(self) -> WorkerCommands:
        return WorkerCommands(
            self.private_address,
            self.folder,
            self._entry.module,
            self._bootstrap,
            self.message_limit,
            self.configuration.log_level,
        )

    @cached_property
    def environments(self) -> EnvironmentStore:
        """The environments on disk that libraries require."""
        return EnvironmentStore(self.configuration.state / "environments", self._bootstrap)

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(self._entry.bootstrap, self.folder.path / "packages.json")

    @property
    def private_address(self) -> str:
        """The address that the daemon's own interpreters call."""
        return self.folder.socket("daemon.sock")

    def live_sessions(self) -> list[InterpreterSession]:
        """Return the sessions that have not ended."""
        return [session for session in self.sessions.all() if session.alive]
