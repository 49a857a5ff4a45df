"""A worker interpreter: its session with the daemon, and the lanes on which it receives calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import platform
import sys
from collections.abc import Awaitable

import grpc
import grpc.aio

from opdispatch import default_dispatcher
from opdispatch.tensors.operators import keep_private
from opdispatch_server.access.route_tickets import TicketAuthentication, new_key
from opdispatch_server.blame.flight_record import process_recorder
from opdispatch_server.device_discovery import take_devices
from opdispatch_server.direct_run import DirectRun
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.internal_message_limit import internal_message_limit
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.metrics.call_counts import process_call_counts
from opdispatch_server.process_watch import process_space
from opdispatch_server.serving.authentication_interceptor import AuthenticationInterceptor
from opdispatch_server.serving.connection_limits import public_server_options
from opdispatch_server.serving.grpc_services import add_execution_service
from opdispatch_server.serving.listeners import bind
from opdispatch_server.worker.execution.call_accounting import CallAccounting
from opdispatch_server.worker.execution.daemon_lane import DaemonLane
from opdispatch_server.worker.execution.kernel_error_log import KernelErrorLog
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.execution.programs import ProgramExecution
from opdispatch_server.worker.execution.slow_call_log import SlowCallLog
from opdispatch_server.worker.heartbeat import Heartbeats
from opdispatch_server.worker.incoming.call_rules import DaemonCalls
from opdispatch_server.worker.incoming.direct_calls import DirectCalls
from opdispatch_server.worker.incoming.direct_entry_points import DirectEntryPoints
from opdispatch_server.worker.incoming.kernel_lanes import KernelLanes
from opdispatch_server.worker.incoming.kernel_streams import KernelStreams
from opdispatch_server.worker.incoming.kernel_threads import KernelThreads
from opdispatch_server.worker.interpreter_settings import InterpreterSettings
from opdispatch_server.worker.libraries.fetch import LibraryFetch, default_cache_folder
from opdispatch_server.worker.libraries.instructions import InterpreterLibraries
from opdispatch_server.worker.lost_device import LostDevice
from opdispatch_server.worker.registrar import Registrar, failed
from opdispatch_server.worker.values.device_exports import DeviceExports
from opdispatch_server.worker.values.peers import PeerValues
from opdispatch_server.worker.values.store import ValueStore
from opdispatch_wire import trace_context
from opdispatch_wire.addresses import check_socket_owner
from opdispatch_wire.asyncio_grpc import asyncio_server, start_server
from opdispatch_wire.channel import channel_options
from opdispatch_wire.credentials import Credentials
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import interpreter_pb2 as pb
from opdispatch_wire.v1 import interpreter_pb2_grpc

LOG = logging.getLogger("opdispatch.interpreter")

# How long an instruction in progress may delay a reconnection.
DROP_TIMEOUT = 30.0
# How long running calls may take to end when the interpreter is to stop.
LAST_CALLS_WAIT = 2.0


STOP_SECONDS = 0.75
"""How long functions passed to ``on_unload`` may take then, in seconds."""


class Interpreter:
    """One interpreter, from hello to the end of its session.

    If the daemon vanishes, direct calls continue until a daemon welcomes another instance in the
    same process, whose ``predecessor`` this one is.
    """

    def __init__(
        self, settings: InterpreterSettings, predecessor: Interpreter | None = None
    ) -> None:
        keep_private()
        self._settings = settings
        self._predecessor = predecessor
        self._limit = internal_message_limit(settings.max_message_bytes)
        # Only the daemon and other interpreters call it at a port of its own.
        self._own_key = new_key() if settings.asks_at_own_port else b""
        self._own_tickets: TicketAuthentication | None = None
        if self._own_key:
            self._own_tickets = TicketAuthentication(self._own_key, 0, lambda: 0)
        self._own_tls = settings.own_certificates()
        self._name = settings.name
        self._lane = DaemonLane(settings.daemon, settings.max_message_bytes, settings.credentials)
        self._fetch = LibraryFetch(settings.cache or default_cache_folder(), settings.daemon)
        self._libraries = InterpreterLibraries(
            default_dispatcher(), self._lane.kernel, self._fetch.unpacked
        )
        self._values = ValueStore()
        self._recorder = process_recorder()
        self._direct = DirectCalls(self._libraries, self._values)
        self._daemon_calls = DaemonCalls(self._values)
        self._counts = process_call_counts()
        self._slow_calls = SlowCallLog(lambda: self._name)
        self._heartbeats = Heartbeats(self._direct, self._counts)
        self._peers = PeerValues(self._limit)
        self._exports = DeviceExports()
        self._lost_device = LostDevice(self.stop)
        programs = ProgramExecution(
            self._libraries.dispatcher,
            self._values,
            self._peers,
            self._exports,
            self._recorder,
            lambda: self._name,
        )
        self._kernel_errors = KernelErrorLog(lambda: self._name)
        self._execution = KernelExecution(
            self._libraries,
            lambda: self._name,
            settings.max_message_bytes,
            self._values,
            programs,
            self._recorder,
            self._heartbeats.fitness,
            self._lost_device.note,
            self._kernel_errors,
            CallAccounting(self._counts, self._slow_calls),
        )
        self._direct_entry = DirectEntryPoints(
            self._execution, self._direct, settings.max_message_bytes, settings.credentials
        )
        self._threads = KernelThreads()
        self._registrar = Registrar(
            self._libraries,
            self._daemon_calls,
            self._recorder,
            self._heartbeats.fitness,
            lambda: self._name,
        )
        self._answering: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()  # gRPC fails the stream if two tasks write at once
        self._stopping = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self.met_daemon = False
        self.may_come_back = False

    @property
    def name(self) -> str:
        """Its own name or, once it is welcomed, the one that the daemon chose."""
        return self._name

    async def run(self) -> None:
        """Serve until the session ends or ``stop`` is called.

        Raises DaemonUnavailableError, or the error with which the daemon refused or ended the
        session; AddressError or OSError if it cannot listen; and DeviceLostError when this process
        has lost a device, which only another process can use again. Then ``met_daemon`` says
        whether there was a session, and ``may_come_back`` whether another one makes sense: the
        daemon has vanished, or asks for it.
        """
        self._lost_device.begin()
        self._heartbeats.begin()
        tickets = self._own_tickets
        interceptors = [] if tickets is None else [AuthenticationInterceptor(tickets)]
        server = asyncio_server(public_server_options(self._limit), interceptors)
        # The daemon limits how many calls may run, and how large they may be.
        streams = KernelStreams(
            self._execution, self._daemon_calls, self._threads, self._limit, at_once=sys.maxsize
        )
        add_execution_service(server, streams)
        listener = bind(
            server,
            self._settings.listen,
            insecure=self._settings.insecure,
            tls=self._own_tls,
            has_tokens=self._own_tickets is not None,
        )
        # Calls that the daemon forwards have passed its limits already.
        lanes = KernelLanes(self._execution, self._daemon_calls, MAX_MESSAGE_BYTES_HIGHEST)
        await start_server(server)
        paths = (self._settings.lane, self._settings.direct_lane)
        for path, each in zip(paths, (lanes, self._direct_entry.lanes), strict=True):
            if path:
                each.listen(path)
                GUARD.own_listener(f"unix:{path}")
        GUARD.own_listener(listener.address)
        GUARD.own_peer(self._settings.daemon)
        try:
            await self._hold_session(listener.address)
        finally:
            if self._stopping.is_set():
                await streams.finish(LAST_CALLS_WAIT)
            await server.stop(grace=None)
            self._direct_entry.close_tickets()
            if not self.may_come_back:
                await self._end_direct_calls()
            lanes.close()
            self._lane.close()
            self._peers.close()
            if not self.may_come_back:
                await asyncio.to_thread(trace_context.shut_down)
            self._values.clear()  # no client is left to claim them
            listener.close()

    async def _end_direct_calls(self) -> None:
        self._direct.take(0)
        patience = LAST_CALLS_WAIT if self._stopping.is_set() else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._direct.wait_idle()
        # Before the lanes are closed, which may take until the daemon's patience is over.
        await asyncio.to_thread(self._libraries.close, STOP_SECONDS)
        await self._close_direct_lanes(patience)

    async def _close_direct_lanes(self, patience: float) -> None:
        await self._direct_entry.close(patience)
        if self._attending is not None:
            self._attending.cancel()
        if self._telling is not None:
            self._telling.cancel()
        self._kernel_errors.flush(all_of_them=True)

    def stop(self) -> None:
        """End the session from this side; running calls finish."""
        self._stopping.set()

    async def make_way(self) -> None:
        """End what continued after the daemon vanished: it is back, or another one has taken over.

        Takes no more direct calls, and releases every library; running calls finish. Raises
        DaemonUnavailableError if an instruction of the old daemon is still in progress, and does
        not end.
        """
        self._direct.take(0)
        try:
            await self._registrar.drop_all(DROP_TIMEOUT)
        except TimeoutError as error:
            raise DaemonUnavailableError(
                f"the daemon at {self._settings.daemon} is gone, and the library that it had this "
                f"interpreter import is not done after {DROP_TIMEOUT:g} s"
            ) from error
        task = asyncio.create_task(self._let_direct_calls_end())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _let_direct_calls_end(self) -> None:
        await self._direct.wait_idle()
        await self._close_direct_lanes(LAST_CALLS_WAIT)

    async def _hold_session(self, address: str) -> None:
        daemon = self._settings.daemon
        check_socket_owner(daemon)
        options = channel_options(self._limit, address=daemon)
        credentials = self._settings.credentials
        async with credentials.asyncio_channel(daemon, options) as channel:
            stub = interpreter_pb2_grpc.InterpreterServiceStub(channel)  # type: ignore[no-untyped-call]
            session = stub.Session()
            reading = asyncio.create_task(self._follow(session, stub, address))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if self._lost_device.error is not None:
                    raise self._lost_device.error
                if reading.done():
                    reason = reading.result()
                    raise DaemonUnavailableError(
                        f"the daemon at {daemon} has ended the session{reason and ': '}{reason}"
                    )
            except grpc.aio.AioRpcError as error:
                if not self.met_daemon:
                    raise error_from_rpc(error, address=daemon) from error
                self.may_come_back = True
                raise DaemonUnavailableError(
                    f"the session with the daemon at {daemon} was cut off",
                    details=error.details() or "",
                ) from error
            finally:
                reading.cancel()
                stopping.cancel()
                session.cancel()
                with contextlib.suppress(asyncio.CancelledError, grpc.RpcError):
                    await reading

    async def _follow(
        self, session: Session, stub: interpreter_pb2_grpc.InterpreterServiceStub, address: str
    ) -> str:
        """Send the hello, then carry out instructions; return why the session ended, if known."""
        await session.write(pb.InterpreterMessage(hello=await self._hello(address)))
        tasks: list[asyncio.Task[None]] = []
        try:
            while True:
                message = await session.read()
                if not isinstance(message, pb.DaemonMessage):
                    return ""  # grpc.aio.EOF
                match message.WhichOneof("kind"):
                    case "welcome":
                        await self._take_place(message.welcome)
                        # At once: the daemon measures from its welcome.
                        if period := message.welcome.heartbeat_seconds:
                            say = functools.partial(self._say, session)
                            beats = self._heartbeats
                            beat = self._recorder.beat if message.welcome.reads_heartbeats else None
                            running = beats.run(say, period, beat, self._give_back)
                            tasks.append(asyncio.create_task(running))
                            tasks.append(asyncio.create_task(beats.say_when_unfit(say)))
                        await self._begin(session, message.welcome)
                    case "goodbye":
                        # Whatever happens to the stream now, this is its last message.
                        self.may_come_back = message.goodbye.come_back
                        return message.goodbye.reason
                    case "release_values":
                        self._values.release(message.release_values)
                    case "settle_values":
                        settled = self._values.keeps.settle(message.settle_values)
                        number = message.instruction_id
                        answer = pb.InterpreterMessage(
                            instruction_id=number, settled_values=settled
                        )
                        await self._say(session, answer)
                    case "direct_calls":
                        self._direct.take(message.direct_calls.epoch)
                        self._direct_entry.revoke(message.direct_calls.revoked)
                        await self._say(session, _done(message))
                    case "await_direct_calls":
                        self._answer_later(session, self._await_direct_calls(message))
                    case "fetch":
                        self._answer_later(session, self._fetch_library(stub, message))
                    case _:
                        # Handed over before the next message is read, to keep the order; answered
                        # later, so that the end of the session is noticed even in the middle of an
                        # import.
                        self._answer_later(session, self._registrar.carry_out(message))
        finally:
            for task in tasks:
                task.cancel()

    async def _hello(self, address: str) -> pb.Hello:
        return pb.Hello(
            protocol_version=PROTOCOL_VERSION,
            name=self._settings.name,
            pid=os.getpid(),
            address=address,
            python_version=platform.python_version(),
            process_space=process_space(),
            heartbeats=True,
            lane=self._settings.lane,
            direct_lane=self._settings.direct_lane,
            flight_record=self._recorder.descriptor,
            call_counts=self._counts.descriptor,
            ticket_key=self._own_key,
            tls=self._own_tls is not None,
            devices=await asyncio.to_thread(take_devices, self._settings.device),
        )

    async def _take_place(self, welcome: pb.Welcome) -> None:
        if self._predecessor is not None:
            await self._predecessor.make_way()
            self._predecessor = None
        self._name = welcome.name
        self._heartbeats.tells_counts = welcome.wants_call_counts
        self._slow_calls.log_calls_slower_than(welcome.slow_call_seconds)
        if welcome.tracing and not trace_context.is_on():
            await asyncio.to_thread(self._set_up_tracing, welcome.tracing)
        self.met_daemon = True
        LOG.debug(
            "welcome as %s", self._name, extra=fields(Event.DAEMON_MET, interpreter=self._name)
        )

    def _set_up_tracing(self, target: str) -> None:
        try:
            trace_context.set_up(target, f"opdispatch {self._name}")
        except Exception as error:  # user code may raise anything; calls continue without traces
            LOG.warning(
                "interpreter %s makes no traces: %s raised %r",
                self._name,
                target,
                error,
                extra=fields(Event.TRACING_FAILED, interpreter=self._name),
            )

    async def _begin(self, session: Session, welcome: pb.Welcome) -> None:
        # No further message of the daemon is read before that, so no library is loaded whose
        # kernels could call. In a thread, because the daemon may be slow to answer, and the loop
        # has heartbeats to send.
        await asyncio.to_thread(self._lane.use_local_lane, welcome.lane)
        await self._follow_rules(session, welcome.direct_calls)
        say = functools.partial(self._say, session)
        report = functools.partial(self._report, session)
        # Not bound to the session: direct calls continue without a daemon.
        self._attending = asyncio.create_task(self._direct.attend(report))
        self._telling = asyncio.create_task(self._kernel_errors.report(say))

    async def _follow_rules(self, session: Session, rules: pb.DirectCallRules) -> None:
        self._direct.follow(rules, self._name)
        self._peers.credentials = self._settings.credentials.without_token()
        if rules.tls_client_ca and not self._settings.credentials.tls_ca:
            self._peers.credentials = Credentials(
                tls_ca=rules.tls_client_ca, tls_cert=rules.tls_cert, tls_key=rules.tls_key
            )
        if ports := await self._direct_entry.listen(rules, self._threads):
            await self._say(
                session, pb.InterpreterMessage(direct_ports=pb.DirectPorts(ports=ports))
            )

    async def _await_direct_calls(self, message: pb.DaemonMessage) -> pb.InterpreterMessage:
        await self._direct.wait_idle(message.await_direct_calls.load_id or None)
        return _done(message)

    async def _fetch_library(
        self, stub: interpreter_pb2_grpc.InterpreterServiceStub, message: pb.DaemonMessage
    ) -> pb.InterpreterMessage:
        try:
            await self._fetch.fetch(stub, message.fetch)
        except Exception as error:  # every instruction must be answered
            return failed(message, error, self._name)
        return _done(message)

    async def _report(self, session: Session, run: DirectRun) -> None:
        overdue = pb.OverdueCall(operator=run.operator, lane=run.lane, id=run.id)
        await self._say(session, pb.InterpreterMessage(overdue=overdue))

    def _give_back(self) -> None:
        """Release expired exports and unloaded code, without delaying heartbeats."""
        self._exports.drop_expired()
        self._registrar.collect_unloaded()

    def _answer_later(self, session: Session, outcome: Awaitable[pb.InterpreterMessage]) -> None:
        async def answer() -> None:
            await self._say(session, await outcome)

        task = asyncio.create_task(answer())
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _say(self, session: Session, message: pb.InterpreterMessage) -> None:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            async with self._writing:
                await session.write(message)  # the session may have ended meanwhile


def _done(message: pb.DaemonMessage) -> pb.InterpreterMessage:
    return pb.InterpreterMessage(instruction_id=message.instruction_id, done=pb.Done())


Session = grpc.aio.StreamStreamCall[pb.InterpreterMessage, pb.DaemonMessage]
