"""The composition root of a daemon: creates each part from the parts that it needs."""

from __future__ import annotations

import asyncio
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from opdispatch_server.access.authentication import Authentication
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.route_tickets import RouteTickets
from opdispatch_server.access.token_file import TokenFile
from opdispatch_server.access.users import parse_users
from opdispatch_server.configuration import (
    MESSAGES_PER_QUEUE,
    DaemonConfiguration,
    default_call_bytes,
)
from opdispatch_server.daemon.board.health import (
    EXECUTION,
    HEALTH,
    INTERPRETER,
    REGISTRY,
    HealthBoard,
)
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.byte_budget import ByteBudget
from opdispatch_server.daemon.calls.interpreter_queue import QueueLimits
from opdispatch_server.daemon.calls.interpreter_queues import InterpreterQueues
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.program_router import ProgramRouter
from opdispatch_server.daemon.calls.quotas import QuotaLimits, Quotas
from opdispatch_server.daemon.calls.recovery import CallRecovery
from opdispatch_server.daemon.calls.router import CallRouter
from opdispatch_server.daemon.environments.interpreter_packages import Bootstrap
from opdispatch_server.daemon.environments.store import EnvironmentStore
from opdispatch_server.daemon.interpreter_events import InterpreterEvents
from opdispatch_server.daemon.interpreters.call_activity import CallActivity
from opdispatch_server.daemon.interpreters.deaths import Blame
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
from opdispatch_server.daemon.processes.supervisor import Supervisor, WorkerCommand
from opdispatch_server.daemon.processes.worker_commands import InterpreterEntry, WorkerCommands
from opdispatch_server.daemon.servicers.execution import ExecutionServicer
from opdispatch_server.daemon.servicers.hold_values import ValueLeases
from opdispatch_server.daemon.servicers.interpreters import InterpreterServicer
from opdispatch_server.daemon.servicers.local_lanes import CallLanes
from opdispatch_server.daemon.servicers.registration_waiters import RegistrationWaiters
from opdispatch_server.daemon.servicers.registry import DaemonFacts, RegistryServicer
from opdispatch_server.daemon.servicers.registry_feed import RegistryFeed
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.daemon.state.folder import libraries_in
from opdispatch_server.daemon.state.journal import Journal
from opdispatch_server.daemon.values.direct_keeps import DirectKeeps
from opdispatch_server.daemon.values.grants import ValueLimits
from opdispatch_server.daemon.values.table import RemoteValueTable
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.logs import set_log_level
from opdispatch_server.message_limit import internal_message_limit
from opdispatch_server.serving.connection_limits import public_server_options
from opdispatch_server.serving.grpc_services import (
    add_execution_service,
    add_interpreter_service,
    add_registry_service,
)
from opdispatch_server.serving.guard import Guard
from opdispatch_server.serving.listeners import Listener
from opdispatch_server.serving.reflection import ReflectionHandler
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.serving.server_certificates import ServerCertificates, TlsError
from opdispatch_server.serving.shared_socket import SharedSocket
from opdispatch_wire.addresses import TcpAddress, parse_address
from opdispatch_wire.asyncio_grpc import asyncio_server
from opdispatch_wire.channel import server_options
from opdispatch_wire.credentials import Credentials
from opdispatch_wire.v1.interpreter_pb2 import DirectCallRules

if TYPE_CHECKING:
    from opdispatch_server.daemon.monitoring.service import Monitoring

# The limit on the bytes of large arguments that the daemon holds for clients at a time. Results are
# not included.
LARGE_CALLS_BYTES = 40 * 2**20


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
        self._queue = QueueLimits(
            configuration.queue,
            MESSAGES_PER_QUEUE * self.message_limit,
            QuotaLimits(*configuration.quotas).calls_of_one(configuration.queue),
        )
        self.stop = asyncio.Event()
        """Set when the daemon is to stop."""
        self.listeners: list[Listener] = []
        """The sockets on which clients reach the daemon, once it has them."""

    def reconfigure(self, **changes: Any) -> None:
        """Apply new settings by name; each must be one of ``CHANGED_WHILE_RUNNING``."""
        self.configuration = new = self.configuration._replace(**changes)
        set_log_level(new.log_level)
        self._values.limits = ValueLimits(new.remote_values, new.remote_bytes)
        self.store.set_limits(new.max_library_bytes, new.library_disk_bytes)

    # -- what clients and interpreters reach -----------------------------------------------------

    @cached_property
    def public(self) -> grpc.aio.Server:
        """The gRPC server for clients, and for interpreters that users start."""
        # A daemon that takes over may share its ports: ``listeners`` checks whose they are.
        options = {**dict(public_server_options(self.message_limit)), "grpc.so_reuseport": 1}
        server = asyncio_server([*options.items()], [self.guard])
        add_registry_service(server, self._registry_servicer)
        add_execution_service(server, self._execution_servicer)
        add_interpreter_service(server, self.interpreter_servicer)
        self.health.add_to(server)
        names = (REGISTRY, EXECUTION, INTERPRETER, HEALTH)
        server.add_generic_rpc_handlers((ReflectionHandler(names),))
        return server

    @cached_property
    def guard(self) -> Guard:
        """The guard of ``public``."""
        return Guard(self.authentication)

    @cached_property
    def authentication(self) -> Authentication:
        """The authentication of callers.

        Raises OSError, and TokensError for a malformed token file.
        """
        path = self.configuration.tokens
        tokens = None if path is None else TokenFile(path)
        return Authentication(tokens, self._peers if self.configuration.allow_users else None)

    @cached_property
    def _peers(self) -> dict[str, Identity]:
        return {}

    @cached_property
    def shared_socket(self) -> SharedSocket:
        """The unix sockets for clients, which other users may use if the configuration says so."""
        users = parse_users(self.configuration.allow_users)
        return SharedSocket(str(self.folder.path / "users.sock"), users, self._peers)

    @property
    def is_secured(self) -> bool:
        """Whether TCP ports require tokens or TLS."""
        return self.authentication.has_tokens or self.tls is not None

    @cached_property
    def tls(self) -> ServerCertificates | None:
        """The certificates of the TCP ports; None without TLS. Raises TlsError."""
        cert, key = self.configuration.tls_cert, self.configuration.tls_key
        client_ca = self.configuration.tls_client_ca
        if cert is None and key is None and client_ca is None:
            return None
        if cert is None or key is None:
            raise TlsError("TLS needs a certificate and its key: --tls-cert and --tls-key")
        return ServerCertificates(cert, key, client_ca)

    @property
    def _own_credentials(self) -> Credentials:
        """The daemon's certificate in the role of a client's, for interpreters that speak TLS."""
        return Credentials(
            tls_ca=_absolute(self.configuration.tls_client_ca),
            tls_cert=_absolute(self.configuration.tls_cert),
            tls_key=_absolute(self.configuration.tls_key),
        )

    @cached_property
    def private(self) -> grpc.aio.Server:
        """The gRPC server for the daemon's own interpreters only."""
        server = asyncio_server(server_options(internal_message_limit(self.message_limit)))
        add_execution_service(server, self._execution_servicer)
        add_interpreter_service(server, self.interpreter_servicer)
        return server

    @cached_property
    def lanes(self) -> CallLanes:
        """The local lanes of clients, and of kernels that run in interpreters."""
        return CallLanes(self.router, ByteBudget(LARGE_CALLS_BYTES), self._view.schemas_of)

    @cached_property
    def _execution_servicer(self) -> ExecutionServicer:
        return ExecutionServicer(
            self.router,
            self._quotas,
            lambda number: self._runs.find(number) is not None,
            self.value_leases,
            self.message_limit,
            self.max_call_bytes,
        )

    @cached_property
    def _quotas(self) -> Quotas:
        return Quotas(QuotaLimits(*self.configuration.quotas))

    @cached_property
    def _registry_servicer(self) -> RegistryServicer:
        return RegistryServicer(
            DaemonFacts(
                version("opdispatch"), self.message_limit, self.addresses, self.client_lane
            ),
            self._operators,
            self.libraries,
            self._view,
            self.waits,
            self.feed,
            self.supervisor.revive,
            self.store,
            self._quotas,
            self._keeps,
        )

    @cached_property
    def interpreter_servicer(self) -> InterpreterServicer:
        """The gRPC service that interpreters call."""
        return InterpreterServicer(
            self.sessions,
            self.supervisor.find_pid,
            self._ends.stop_process,
            lambda: self.supervisor.names,
            self.pools.find,
            self.leases,
            self._runs,
            self.libraries.catalog.count_kernel_errors,
            self._ends.judge,
            self._events.unfit,
            self.totals,
            DirectCallRules(
                queue_calls=self._queue.calls,
                queue_bytes=self._queue.bytes,
                kernel_timeout=self.configuration.kernel_timeout or 0.0,
                max_call_bytes=self.max_call_bytes,
                tls_cert=_absolute(self.configuration.tls_cert),
                tls_key=_absolute(self.configuration.tls_key),
                tls_client_ca=_absolute(self.configuration.tls_client_ca),
            ),
            self._tickets.key_of if self.authentication.has_tokens else lambda session: b"",
            self._tcp_hosts,
            self.configuration.direct_ports,
            credentials=self._own_credentials,
            max_message_bytes=self.message_limit,
            insecure=self.configuration.insecure,
            is_secured=self.is_secured,
            lane=self.kernel_lane,
            store=self.store,
            slow_call=self.configuration.slow_call or 0.0,
            tracing=self.configuration.tracing or "",
        )

    @cached_property
    def value_leases(self) -> ValueLeases:
        """The streams on which clients hold values."""
        return ValueLeases(self._values, self._keeps)

    @cached_property
    def waits(self) -> RegistrationWaiters:
        """The clients' calls that wait for a registration."""
        return RegistrationWaiters(self._operators, self._view, self.libraries.publication)

    @cached_property
    def feed(self) -> RegistryFeed:
        """The registry as a stream of changes."""
        activity = CallActivity(self.totals, lambda: self.health.is_serving)
        return RegistryFeed(self._operators, self._view, self.libraries.publication, activity)

    @cached_property
    def _view(self) -> RegistryView:
        return RegistryView(
            self._operators,
            self.libraries,
            self.sessions,
            self.supervisor,
            self._queues,
            self._values,
            self.blame,
        )

    @cached_property
    def monitoring(self) -> Monitoring:
        """The daemon's HTTP pages. Imported only if configured, because they need an extra."""
        from opdispatch_server.daemon.monitoring.facts import DaemonReader
        from opdispatch_server.daemon.monitoring.service import Monitoring

        return Monitoring(
            DaemonReader(
                asyncio.get_running_loop(),
                self._view,
                self.feed,
                self.waits,
                self.health,
                self.totals,
                lambda: self.router.refusals,
            ),
            self.authentication,
            self.configuration.metrics_compat,
            self._execution_servicer.runner_for,
            self.folder.path / "http-token",
            self.tls,
        )

    @cached_property
    def health(self) -> HealthBoard:
        """The health status of all services, for probes."""
        return HealthBoard(interpreters_expected=bool(self.names))

    # -- calls -----------------------------------------------------------------------------------

    @cached_property
    def router(self) -> CallRouter:
        """The router that forwards each call to an interpreter."""
        return CallRouter(
            self._operators,
            self.libraries,
            self.routes,
            self._queues,
            self._runs,
            self._recovery,
            self._values,
            self._keeps,
            self._programs,
            self.blame,
            self._alone,
        )

    @cached_property
    def _programs(self) -> ProgramRouter:
        return ProgramRouter(
            self._operators,
            self.libraries,
            self.sessions,
            self._queues,
            self._runs,
            self._recovery,
            self._values,
            self.blame,
            self._alone,
        )

    @cached_property
    def _queues(self) -> InterpreterQueues:
        return InterpreterQueues(self._queue)

    @cached_property
    def _runs(self) -> KernelRuns:
        return KernelRuns(
            self.sessions, self._ends.kill, self._ends.judge, self.configuration.kernel_timeout
        )

    @cached_property
    def _recovery(self) -> CallRecovery:
        return CallRecovery(self.libraries.settling, self._queue)

    @cached_property
    def _alone(self) -> AloneRuns:
        return AloneRuns(self._queues, self.routes, self.blame.is_cell)

    @cached_property
    def _keeps(self) -> DirectKeeps:
        return DirectKeeps(self._values)

    @cached_property
    def _values(self) -> RemoteValueTable:
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
            self._operators,
            self.sessions,
            self.store,
            self.routes,
            self._ends.kill,
            self._ends.judge,
        )

    @cached_property
    def _operators(self) -> OperatorRegistry:
        return OperatorRegistry()

    @cached_property
    def routes(self) -> DirectRoutes:
        """The routes of direct calls."""
        return DirectRoutes(
            self._operators, self.sessions, self._tickets, self._quotas.counts_calls_of
        )

    @cached_property
    def _tickets(self) -> RouteTickets:
        return RouteTickets(self.authentication)

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
    def sessions(self) -> InterpreterSessions:
        """The sessions of the connected interpreters."""
        sessions = InterpreterSessions()
        sessions.on_ready = lambda session: self._events.ready(session)
        sessions.on_lost = lambda session: self._events.lost(session)
        return sessions

    @cached_property
    def _events(self) -> InterpreterEvents:
        return InterpreterEvents(
            self.supervisor,
            self.pools,
            self.health,
            self.blame,
            self._ends,
            self.libraries,
            self._queues,
            self._runs,
        )

    @cached_property
    def _ends(self) -> InterpreterEnds:
        return InterpreterEnds(self.sessions, self.supervisor, self.blame, self.stop.is_set)

    @cached_property
    def blame(self) -> Blame:
        """The judge of which call brought an interpreter down."""
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
            self._ends.kill,
            self.libraries.fitness_changed,
            self._events.busy,
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
            on_ended=lambda name, pid, how: self._ends.process_ended(name, pid, how),
            on_quarantined=lambda: self._events.quarantined(),
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

    # -- where all of it is ----------------------------------------------------------------------

    @property
    def private_address(self) -> str:
        """The address that the daemon's own interpreters call."""
        return self.folder.socket("daemon.sock")

    @property
    def client_lane(self) -> str:
        """The local lane of clients."""
        return self.folder.lane("clients")

    @property
    def kernel_lane(self) -> str:
        """The local lane of kernels in interpreters."""
        return self.folder.lane("kernels")

    def addresses(self) -> list[str]:
        """Return the addresses on which clients reach the daemon."""
        return [listener.address for listener in self.listeners]

    def live_sessions(self) -> list[InterpreterSession]:
        """Return the sessions that have not ended."""
        return [session for session in self.sessions.all() if session.alive]

    def _tcp_hosts(self) -> list[str]:
        parsed = map(parse_address, self.configuration.listen)
        return sorted({each.host for each in parsed if isinstance(each, TcpAddress)})


def _absolute(path: Path | None) -> str:
    """Return the absolute path: interpreters may run in another folder."""
    return "" if path is None else str(path.absolute())
