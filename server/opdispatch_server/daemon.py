"""The daemon: everything put together, started in order, and stopped in order.

start   signals, sockets, journal, health (not serving), interpreters, libraries, ready
stop    health (not serving), no new calls, calls in flight finish, servers, interpreters
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version

import grpc.aio
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from opdispatch_server.blame.flight_record import Subject
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.calls.admission import Admission
from opdispatch_server.calls.alone_runs import AloneRuns
from opdispatch_server.calls.byte_budget import ByteBudget
from opdispatch_server.calls.call_lanes import CallLanes
from opdispatch_server.calls.call_recovery import CallRecovery
from opdispatch_server.calls.call_router import CallRouter
from opdispatch_server.calls.direct_routes import DirectRoutes
from opdispatch_server.calls.interpreter_gate import QueueLimits
from opdispatch_server.calls.kernel_runs import KernelRuns, busy_error
from opdispatch_server.calls.program_router import ProgramRouter
from opdispatch_server.configuration import (
    MESSAGES_PER_QUEUE,
    DaemonConfiguration,
    default_call_bytes,
)
from opdispatch_server.environments.environment_store import EnvironmentStore
from opdispatch_server.environments.interpreter_packages import BOOTSTRAP
from opdispatch_server.interpreters.blame import Blame
from opdispatch_server.interpreters.interpreter_session import InterpreterSession
from opdispatch_server.interpreters.interpreter_sessions import InterpreterSessions
from opdispatch_server.interpreters.leases import LeaseWatch
from opdispatch_server.interpreters.silent_interpreters import SilentInterpreters
from opdispatch_server.libraries.library_registry import LibraryRegistry
from opdispatch_server.libraries.library_transaction import LibraryTransaction
from opdispatch_server.libraries.load_request import reading_load_request
from opdispatch_server.library_code.library_store import LibraryStore
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.operator_registry import OperatorRegistry
from opdispatch_server.processes.interpreter_pools import InterpreterPools
from opdispatch_server.processes.process_watch import ProcessEnd
from opdispatch_server.processes.supervisor import Supervisor, WorkerCommand
from opdispatch_server.processes.template import Template
from opdispatch_server.registration_waits import RegistrationWaits
from opdispatch_server.registry_view import RegistryView
from opdispatch_server.servicers.execution_servicer import ExecutionServicer
from opdispatch_server.servicers.health import EXECUTION, HEALTH, INTERPRETER, REGISTRY, HealthBoard
from opdispatch_server.servicers.interpreter_servicer import InterpreterServicer
from opdispatch_server.servicers.library_uploads import store_content
from opdispatch_server.servicers.registry_servicer import DaemonFacts, RegistryServicer
from opdispatch_server.serving.grpc_services import (
    add_execution_service,
    add_interpreter_service,
    add_registry_service,
)
from opdispatch_server.serving.listeners import Listener, bind, warn_of_other_users
from opdispatch_server.serving.message_limit import internal_message_limit
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.state.journal import Journal
from opdispatch_server.state.state_folder import libraries_in
from opdispatch_server.values.remote_value_table import RemoteValueTable, ValueLimits
from opdispatch_server.values.value_leases import ValueLeases
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
# How long an interpreter that is about to be replaced has for its calls, and how often it is looked
# whether they have ended.
UNFIT_GRACE = 1.0
UNFIT_LOOK = 0.02
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
        template: Template | None = None,
    ) -> None:
        self._configuration = configuration
        self._folder = folder
        self._limit = configuration.max_message_bytes
        self._max_call_bytes = configuration.max_call_bytes or default_call_bytes()
        self._devices = {f"worker-{n + 1}": each for n, each in enumerate(configuration.workers)}
        self._names = tuple(self._devices)
        self._stop = asyncio.Event()
        self._listeners: list[Listener] = []
        self._public = asyncio_server(server_options(self._limit))
        # For our own interpreters: nobody else can reach it, and it is the last to close.
        self._private = asyncio_server(server_options(internal_message_limit(self._limit)))
        self._health = HealthBoard(interpreters_expected=bool(self._names))
        self._sessions = InterpreterSessions()
        self._sessions.on_ready = self._interpreter_ready
        self._sessions.on_lost = self._interpreter_lost
        self._leases = LeaseWatch(configuration.heartbeat)
        self._supervisor = Supervisor(
            self._names,
            self._worker_command,
            template=template,
            quarantine_after=configuration.quarantine_after,
            on_ended=self._process_ended,
            on_quarantined=self._interpreter_quarantined,
        )
        self._blame = Blame(
            self._live_sessions,
            self._names_for_all,
            lambda operator: self._libraries.catalog.library_of(operator),
            lambda: self._libraries.blame_changed(),
        )
        self._silent = SilentInterpreters(
            configuration.heartbeat,
            configuration.lock_timeout,
            self._kill_interpreter,
            lambda: self._libraries.fitness_changed(),
            self._move_from,
        )
        self._replacing: set[asyncio.Task[None]] = set()
        self._journal = Journal(configuration.state)
        operators = OperatorRegistry()
        self._store = LibraryStore(
            libraries_in(configuration.state),
            upload_bytes=configuration.max_library_bytes,
            disk_bytes=configuration.library_disk_bytes,
        )
        self._packages = folder.path / "packages.json"
        self._environments = EnvironmentStore(configuration.state / "environments", self._packages)
        self._pools = InterpreterPools(self._supervisor, self._sessions, self._environments)
        self._routes = DirectRoutes(operators, self._sessions)
        transaction = LibraryTransaction(
            operators,
            self._sessions,
            self._store,
            self._routes,
            self._kill_interpreter,
            self._blame.judge,
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
        admission = self._admission = Admission(limits)
        timeout = configuration.kernel_timeout
        runs = self._runs = KernelRuns(
            self._sessions, self._kill_interpreter, self._blame.judge, timeout
        )
        alone = AloneRuns(admission, self._routes.announce, self._is_cell)
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
            self._stop_process,
            lambda: self._supervisor.names,
            self._pools.find,
            self._leases,
            runs,
            self._libraries.catalog.count_kernel_errors,
            self._judge,
            self._interpreter_unfit,
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
        """Serves until a signal says stop; ``on_ready`` is told the addresses.

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

    def _tcp_hosts(self) -> list[str]:
        parsed = map(parse_address, self._addresses())
        return sorted({each.host for each in parsed if isinstance(each, TcpAddress)})

    def _worker_command(self, name: str) -> WorkerCommand:
        python = self._pools.python_of(name)
        start = (
            (sys.executable, "-m", "opdispatch_server.worker.interpreter_start")
            if python is None
            else (str(python), "-E", "-u", str(BOOTSTRAP), str(self._packages))
        )
        arguments = (
            *("--daemon", self._private_address),
            *("--listen", self._folder.socket(f"{_file_name(name)}.sock")),
            *("--lane", self._folder.lane(_file_name(name))),
            *("--direct-lane", self._folder.lane(f"{_file_name(name)}.direct")),
            *("--name", name),
            *("--device", self._devices.get(name, "")),
            *("--parent", str(os.getpid())),
            *("--max-message-bytes", str(self._limit)),
            *("--log-level", self._configuration.log_level),
        )
        return WorkerCommand(start, arguments, is_own=python is None)

    def _kill_interpreter(
        self, session: InterpreterSession, reason: str, cause: Cause, named: Subject | None
    ) -> None:
        """Ends a session, and its process if that is ours."""
        if self._stop.is_set():
            return  # all of them end in a moment: what was cut off by that is nobody's fault
        # A process that is somebody else's may wake up again, and is welcome then.
        is_silent = cause in (Cause.SILENT, Cause.LOCKED, Cause.KILLED)
        session.end(reason, cause=cause, named=named, come_back=is_silent, hung=True)
        self._judge(session)
        self._stop_process(session)

    def _judge(self, session: InterpreterSession) -> None:
        """Has it said whose fault the end of a session is; a start that was none is excused."""
        verdict = self._blame.judge(session)
        if verdict.shares and self._supervisor.pid_of(session.name) == session.pid:
            self._supervisor.excuse(session.name)

    def _live_sessions(self) -> list[InterpreterSession]:
        return [session for session in self._sessions.all() if session.alive]

    def _interpreter_quarantined(self) -> None:
        self._blame.refresh()
        self._libraries.interpreter_quarantined()

    def _names_for_all(self) -> list[str]:
        """The interpreters that everybody's libraries may be in, live or about to be again."""
        quarantined = self._supervisor.quarantined()
        ours = [n for n in self._supervisor.names if self._pools.find(n) is None]
        joined = [s.name for s in self._sessions.all() if s.pool is None and not s.supervised]
        draining = self._libraries.placement.is_draining_name
        names = [n for n in ours if n not in quarantined] + joined
        return [name for name in names if not draining(name)]

    def _is_cell(self, session: InterpreterSession) -> bool:
        return session.name in self._blame.separation.cells

    def _move_from(self, session: InterpreterSession) -> None:
        """Has the calls of others leave an interpreter whose lock a kernel keeps."""
        self._runs.move_from(session)
        if (gate := self._admission.find(session)) is not None:
            gate.send_away(
                session.busy_operators,
                lambda operator: busy_error(session, operator, started="no"),
            )

    def _interpreter_unfit(self, session: InterpreterSession, problem: str) -> None:
        """Replaces an interpreter that can run kernels no more, once its calls have ended."""
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
        self._kill_interpreter(session, problem, Cause.UNFIT, None)

    def _process_ended(self, name: str, pid: int, how: ProcessEnd) -> None:
        session = self._sessions.find(name)
        if session is not None and session.pid == pid:
            session.end_with_process(how)
            self._judge(session)

    async def _interpreter_ready(self, session: InterpreterSession) -> None:
        self._supervisor.note_ready(session.name)
        await self._health.interpreter(session.name, serving=True)

    async def _interpreter_lost(self, session: InterpreterSession) -> None:
        """Tells at once who watches; what the registry has to do may take longer."""
        await self._health.interpreters(len(self._pools.ready(None)))
        # Ours come back, but for those that are not needed any more.
        serving = False if session.supervised and not session.dismissed else None
        await self._health.interpreter(session.name, serving=serving)
        for library in self._libraries.catalog.newest():
            await self._health.library(library.name, serving=library.is_serving)

    def _stop_process(self, session: InterpreterSession) -> None:
        if self._stop.is_set():
            return  # all of them have been told to end, and have some time for that
        if self._supervisor.pid_of(session.name) == session.pid:
            # The stacks of its threads say which line keeps the lock.
            dumps = session.cause is Cause.LOCKED and not session.alive
            self._supervisor.kill(session.name, dumps=dumps)


def _file_name(interpreter: str) -> str:
    """A short one: names may be a library's, and the path of a socket has a limit."""
    if re.fullmatch(r"worker-\d{1,3}", interpreter):
        return interpreter
    return hashlib.sha256(interpreter.encode()).hexdigest()[:10]
