"""The daemon: everything put together, started in order, and stopped in order.

start   signals, sockets, journal, health (not serving), interpreters, libraries, ready
stop    health (not serving), no new calls, calls in flight finish, servers, interpreters
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from importlib.metadata import version

import grpc.aio
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

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
from opdispatch_server.daemon.calls.admission import Admission
from opdispatch_server.daemon.calls.alone_runs import AloneRuns
from opdispatch_server.daemon.calls.byte_budget import ByteBudget
from opdispatch_server.daemon.calls.interpreter_gate import QueueLimits
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.calls.program_router import ProgramRouter
from opdispatch_server.daemon.calls.recovery import CallRecovery
from opdispatch_server.daemon.calls.router import CallRouter
from opdispatch_server.daemon.environments.interpreter_packages import Bootstrap
from opdispatch_server.daemon.environments.store import EnvironmentStore
from opdispatch_server.daemon.interpreter_events import InterpreterEvents
from opdispatch_server.daemon.interpreters.blame import Blame
from opdispatch_server.daemon.interpreters.connected import InterpreterSessions
from opdispatch_server.daemon.interpreters.ends import InterpreterEnds
from opdispatch_server.daemon.interpreters.leases import LeaseWatch
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.silence import SilentInterpreters
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes
from opdispatch_server.daemon.libraries.interpreter_pools import InterpreterPools
from opdispatch_server.daemon.libraries.load_request import reading_load_request
from opdispatch_server.daemon.libraries.operator_registry import OperatorRegistry
from opdispatch_server.daemon.libraries.registry import LibraryRegistry
from opdispatch_server.daemon.libraries.transaction import LibraryTransaction
from opdispatch_server.daemon.processes.supervisor import Supervisor
from opdispatch_server.daemon.processes.worker_commands import InterpreterEntry, WorkerCommands
from opdispatch_server.daemon.servicers.execution import ExecutionServicer
from opdispatch_server.daemon.servicers.interpreters import InterpreterServicer
from opdispatch_server.daemon.servicers.library_uploads import store_content
from opdispatch_server.daemon.servicers.local_lanes import CallLanes
from opdispatch_server.daemon.servicers.registration_waits import RegistrationWaits
from opdispatch_server.daemon.servicers.registry import DaemonFacts, RegistryServicer
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.daemon.servicers.value_leases import ValueLeases
from opdispatch_server.daemon.state.folder import libraries_in
from opdispatch_server.daemon.state.journal import Journal
from opdispatch_server.daemon.values.table import RemoteValueTable, ValueLimits
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.message_limit import internal_message_limit
from opdispatch_server.serving.grpc_services import (
    add_execution_service,
    add_interpreter_service,
    add_registry_service,
)
from opdispatch_server.serving.listeners import Listener, bind, warn_of_other_users
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_wire.addresses import TcpAddress, parse_address
from opdispatch_wire.asyncio_grpc import asyncio_server
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, server_options
from opdispatch_wire.library_source import LoadSource
from opdispatch_wire.v1.interpreter_pb2 import DirectCallRules

LOG = logging.getLogger("opdispatch.daemon")

START_TIMEOUT = 60.0
# How long a load waits for an interpreter, where one is being started.
INTERPRETER_WAIT = 10.0
# How long a start waits for the libraries of the journal: one that hangs must not keep all
# others from being served.
RESTORE_WAIT = 10.0
# Of the arguments of large calls that clients send through the daemon, what it holds at a time.
# Their results come on top.
LARGE_CALLS_BYTES = 40 * 2**20
# The parts of the five seconds in which a daemon stops.
CALLS_GRACE = 2.5
SERVER_GRACE = 0.25
WORKERS_GRACE = 1.75


class StartError(RuntimeError):
    """The daemon cannot start; the message says why."""


class Daemon:
    """One daemon. Made and run inside an event loop."""

    def __init__(
        self,
        configuration: DaemonConfiguration,
        folder: RunFolder,
        entry: InterpreterEntry,
    ) -> None:
        self._configuration = configuration
        self._folder = folder
        self._limit = configuration.max_message_bytes
        self._max_call_bytes = configuration.max_call_bytes or default_call_bytes()
        devices = {f"worker-{n + 1}": each for n, each in enumerate(configuration.workers)}
        self._names = tuple(devices)
        self._stop = asyncio.Event()
        self._listeners: list[Listener] = []
        self._public = asyncio_server(server_options(self._limit))
        # For our own interpreters: nobody else can reach it, and it is the last to close.
        self._private = asyncio_server(server_options(internal_message_limit(self._limit)))
        self._health = HealthBoard(interpreters_expected=bool(self._names))
        self._sessions = InterpreterSessions()
        self._leases = LeaseWatch(configuration.heartbeat)
        bootstrap = Bootstrap(entry.bootstrap, folder.path / "packages.json")
        commands = WorkerCommands(
            self._private_address,
            folder,
            entry.module,
            bootstrap,
            self._limit,
            configuration.log_level,
        )
        self._supervisor = Supervisor(
            self._names,
            lambda name: commands.command_for(
                name, devices.get(name, ""), self._pools.python_of(name)
            ),
            template=entry.template,
            quarantine_after=configuration.quarantine_after,
            on_ended=lambda name, pid, how: ends.process_ended(name, pid, how),
            on_quarantined=lambda: events.quarantined(),
        )
        self._blame = Blame(
            self._live_sessions,
            lambda: self._libraries.placement.names_for_all(),
            lambda operator: self._libraries.catalog.library_of(operator),
            lambda: self._libraries.blame_changed(),
        )
        ends = InterpreterEnds(self._sessions, self._supervisor, self._blame, self._stop.is_set)
        self._journal = Journal(configuration.state)
        operators = OperatorRegistry()
        self._store = LibraryStore(
            libraries_in(configuration.state),
            upload_bytes=configuration.max_library_bytes,
            disk_bytes=configuration.library_disk_bytes,
        )
        self._environments = EnvironmentStore(configuration.state / "environments", bootstrap)
        self._pools = InterpreterPools(self._supervisor, self._sessions, self._environments)
        self._routes = DirectRoutes(operators, self._sessions)
        transaction = LibraryTransaction(
            operators, self._sessions, self._store, self._routes, ends.kill, ends.judge
        )
        self._libraries = LibraryRegistry(
            transaction,
            self._sessions,
            self._pools,
            self._health,
            configuration.load_timeout,
            INTERPRETER_WAIT if self._names else 0.0,
            self._journal,
            self._blame,
        )
        limits = QueueLimits(configuration.queue, MESSAGES_PER_QUEUE * self._limit)
        admission = Admission(limits)
        timeout = configuration.kernel_timeout
        runs = KernelRuns(self._sessions, ends.kill, ends.judge, timeout)
        events = InterpreterEvents(
            self._supervisor,
            self._pools,
            self._health,
            self._blame,
            ends,
            self._libraries,
            admission,
            runs,
        )
        self._sessions.on_ready = events.ready
        self._sessions.on_lost = events.lost
        self._silent = SilentInterpreters(
            configuration.heartbeat,
            configuration.lock_timeout,
            ends.kill,
            self._libraries.fitness_changed,
            events.busy,
        )
        alone = AloneRuns(admission, self._routes.announce, self._blame.is_cell)
        recovery = CallRecovery(self._libraries.settling, limits)
        values = RemoteValueTable(
            ValueLimits(configuration.remote_values, configuration.remote_bytes)
        )
        self._value_leases = ValueLeases(values)
        programs = ProgramRouter(
            operators,
            self._libraries,
            self._sessions,
            admission,
            runs,
            recovery,
            values,
            self._blame,
            alone,
        )
        self._router = CallRouter(
            operators,
            self._libraries,
            self._routes,
            admission,
            runs,
            recovery,
            values,
            programs,
            self._blame,
            alone,
        )
        view = RegistryView(
            operators,
            self._libraries,
            self._sessions,
            self._supervisor,
            admission,
            values,
            self._blame,
        )
        self._waits = RegistrationWaits(operators, view, self._libraries.publication)
        lane = folder.lane("clients")
        facts = DaemonFacts(version("opdispatch"), self._limit, self._addresses, lane)
        self._lanes = CallLanes(self._router, ByteBudget(LARGE_CALLS_BYTES))
        self._interpreters = InterpreterServicer(
            self._sessions,
            self._supervisor.pid_of,
            ends.stop_process,
            lambda: self._supervisor.names,
            self._pools.find,
            self._leases,
            runs,
            self._libraries.catalog.count_kernel_errors,
            ends.judge,
            events.unfit,
            DirectCallRules(
                queue_calls=limits.calls,
                queue_bytes=limits.bytes,
                kernel_timeout=timeout or 0.0,
                max_call_bytes=self._max_call_bytes,
            ),
            self._tcp_hosts,
            configuration.direct_ports,
            max_message_bytes=self._limit,
            insecure=configuration.insecure,
            lane=folder.lane("kernels"),
            store=self._store,
        )
        revive = self._supervisor.revive
        registry = RegistryServicer(
            facts, operators, self._libraries, view, self._waits, revive, self._store
        )
        self._serve_on(self._public, registry)

    async def run(self, on_ready: Callable[[Sequence[str]], None]) -> None:
        """Serve until a signal says stop; ``on_ready`` is told the addresses.

        Raises StartError, AddressError, AddressInUseError, JournalError, or what a library that
        is named in the configuration raises.
        """
        self._handle_signals()
        leases = asyncio.create_task(
            self._leases.run(self._live_sessions, self._silent.look, self._silent.note_heard)
        )
        try:
            await self._start()
            on_ready(self._addresses())
            await self._stop.wait()
            LOG.info("stopping", extra=fields(Event.DAEMON_STOPPING))
        finally:
            leases.cancel()
            await self._shut_down()

    async def _start(self) -> None:
        await self._health.interpreters(0)
        bind(self._private, self._private_address, insecure=False)
        for address in self._configuration.listen:
            insecure = self._configuration.insecure
            listener = bind(self._public, address, insecure=insecure)
            self._listeners.append(listener)
            warn_of_other_users(listener.address)
        await self._libraries.adopt()
        await self._private.start()
        await self._public.start()
        internal_limit = internal_message_limit(self._limit)
        highest = MAX_MESSAGE_BYTES_HIGHEST
        kernels, clients = self._folder.lane("kernels"), self._folder.lane("clients")
        self._lanes.listen(kernels, internal_limit, highest, is_for_kernels=True)
        self._lanes.listen(clients, self._limit, min(self._max_call_bytes, highest))
        self._supervisor.start()
        # A signal must not have to wait for a start that hangs.
        starting = asyncio.create_task(self._bring_up())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

    async def _bring_up(self) -> None:
        ready = self._sessions.wait_until(
            lambda: len(self._pools.ready(None)) >= len(self._names), START_TIMEOUT
        )
        are_ready, trouble = await self._supervisor.unless_quarantined(ready)
        if trouble:
            raise StartError(f"{trouble}; the log has its output")
        if not are_ready:
            count = len(self._pools.ready(None))
            raise StartError(
                f"{count} of {len(self._names)} interpreters were ready after {START_TIMEOUT:g} s; "
                "the log has their output"
            )
        if not await self._libraries.restore(RESTORE_WAIT):
            LOG.warning(
                "some libraries are still being loaded; they serve when they are",
                extra=fields(Event.LIBRARY_RESTORED),
            )
        for source in self._configuration.libraries:
            await self._load(source)

    async def _load(self, source: LoadSource) -> None:
        if source.content is not None:
            await asyncio.to_thread(store_content, self._store, source)
        async with reading_load_request(source.request, self._store) as order:
            await self._libraries.load(order)

    async def _shut_down(self) -> None:
        await self._health.drain()
        self._waits.stop()
        self._value_leases.stop()
        self._routes.end()
        if not await self._router.drain(CALLS_GRACE):
            LOG.warning(
                "calls that are still running are cut off", extra=fields(Event.CALLS_CUT_OFF)
            )
        await self._libraries.stop()
        await self._environments.stop()
        self._blame.stop()  # first: the next line ends interpreters, with what runs in them
        self._interpreters.stop()
        await self._interpreters.wait_for_endings()
        await self._public.stop(SERVER_GRACE)
        self._lanes.close()
        await self._supervisor.stop(WORKERS_GRACE)
        await self._pools.wait_for_endings()
        await self._private.stop(0)
        await self._journal.close()
        self._clean_up()

    def _clean_up(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._folder.remove()

    def _handle_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        # The second one: somebody does not want to wait.
        self._supervisor.kill_all()
        self._clean_up()
        os._exit(1)

    def _serve_on(self, server: grpc.aio.Server, registry: RegistryServicer) -> None:
        execution = ExecutionServicer(
            self._router, self._value_leases, self._limit, self._max_call_bytes
        )
        add_registry_service(server, registry)
        for each in (server, self._private):
            add_execution_service(each, execution)
            add_interpreter_service(each, self._interpreters)
        self._health.add_to(server)
        names = (REGISTRY, EXECUTION, INTERPRETER, HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    @property
    def _private_address(self) -> str:
        return self._folder.socket("daemon.sock")

    def _addresses(self) -> list[str]:
        return [listener.address for listener in self._listeners]

    def _live_sessions(self) -> list[InterpreterSession]:
        return [session for session in self._sessions.all() if session.alive]

    def _tcp_hosts(self) -> list[str]:
        parsed = map(parse_address, self._addresses())
        return sorted({each.host for each in parsed if isinstance(each, TcpAddress)})
