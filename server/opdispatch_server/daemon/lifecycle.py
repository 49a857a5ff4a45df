"""Start and stop the daemon's parts in order.

start   signals, sockets, journal, health (not serving), interpreters, libraries, ready
stop    health (not serving), no new calls, calls in flight finish, servers, interpreters
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from opdispatch_server.daemon.entry_points import EntryPoints
from opdispatch_server.daemon.libraries.load_request import reading_load_request
from opdispatch_server.daemon.parts import DaemonParts
from opdispatch_server.daemon.processes.worker_commands import InterpreterEntry
from opdispatch_server.daemon.servicers.library_uploads import store_content
from opdispatch_server.daemon.take_over import TakeOver, TakeOverServer
from opdispatch_server.daemon_configuration import CHANGED_WHILE_RUNNING, DaemonConfiguration
from opdispatch_server.internal_message_limit import internal_message_limit
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.listeners import bind, listen_for_users, warn_of_other_users
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.serving.service_manager import ServiceManager
from opdispatch_wire import trace_context
from opdispatch_wire.addresses import UnixAddress, parse_address
from opdispatch_wire.asyncio_grpc import start_server
from opdispatch_wire.library_source import LoadSource
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST

if TYPE_CHECKING:
    from opdispatch_server.daemon.monitoring.service import Monitoring

LOG = logging.getLogger("opdispatch.daemon")

START_TIMEOUT = 60.0
# How long a start waits for the journal's libraries: one that hangs must not keep the others from
# being served.
RESTORE_WAIT = 10.0
# The same limit while another daemon still serves the libraries.
TAKE_OVER_WAIT = 100.0
# The share of calls in flight in the five seconds in which a daemon stops.
CALLS_GRACE = 2.5
# How long calls in flight may take to finish while another daemon already serves.
GIVEN_GRACE = 3600.0
# After that: how long the daemon must receive no call before it closes its connections, and the
# latest time at which it does.
QUIET, QUIET_AT_MOST = 0.5, 2.5
SERVER_GRACE = 0.25
WORKERS_GRACE = 1.75


class StartError(RuntimeError):
    """The daemon cannot start; the message says why."""


class ConfigurationError(ValueError):
    """The configuration cannot be used; the message says why."""


class Daemon:
    """One daemon. Created and run inside an event loop."""

    def __init__(
        self,
        configuration: DaemonConfiguration,
        folder: RunFolder,
        entry: InterpreterEntry,
        manager: ServiceManager,
    ) -> None:
        self._parts = DaemonParts(configuration, folder, entry)
        self._entries = EntryPoints(self._parts)
        self._manager = manager
        self._status = ""  # reported to the service manager; empty until the daemon is ready
        self._monitoring: Monitoring | None = None
        self._urls: list[str] = []
        self._take_over: TakeOver | None = None
        self._take_overs = TakeOverServer(
            self._hold, self._take_back, self._parts.stop.set, self._failed
        )

    async def run(
        self,
        on_ready: Callable[[Sequence[str]], None],
        read_again: Callable[[], DaemonConfiguration],
    ) -> None:
        """Serve until a stop signal arrives; call ``on_ready`` with the addresses.

        ``read_again`` rereads the configuration at SIGHUP, or raises ConfigurationError.

        Raises StartError, AddressError, AddressInUseError, JournalError, or the error of a library
        that the configuration names.
        """
        parts, entries = self._parts, self._entries
        self._handle_signals(read_again)
        alive = asyncio.create_task(self._manager.keep_alive())
        leases = asyncio.create_task(
            parts.leases.run(parts.live_sessions, parts.silent.look, parts.silent.note_heard)
        )
        watching = asyncio.create_task(parts.access.authentication.revocation.watch())
        try:
            await self._start()
            on_ready([*entries.addresses(), *self._urls])
            self._status = f"listening on {' '.join(entries.addresses())}"
            self._manager.ready(self._status)
            await parts.stop.wait()
            LOG.info("stopping", extra=fields(Event.DAEMON_STOPPING))
        finally:
            self._manager.stopping()
            leases.cancel()
            watching.cancel()
            await self._shut_down()
            alive.cancel()

    async def _start(self) -> None:
        parts, entries = self._parts, self._entries
        if parts.configuration.tracing is not None:
            await asyncio.to_thread(_set_up_tracing, parts.configuration.tracing)
        await parts.health.interpreters(0)
        bind(entries.private, parts.private_address, insecure=False)
        if parts.configuration.take_over:
            self._take_over = await TakeOver.begin(parts.configuration.state)
        if self._take_over is None:
            shared = self._bind_public()
        await parts.libraries.adopt()
        # Lanes first: a client that finds no lane does not look for one again.
        internal_limit = internal_message_limit(parts.message_limit)
        highest = MAX_MESSAGE_BYTES_HIGHEST
        kernels, clients = entries.kernel_lane, entries.client_lane
        entries.lanes.listen(kernels, internal_limit, highest, is_for_kernels=True)
        entries.lanes.listen(clients, parts.message_limit, min(parts.max_call_bytes, highest))
        await start_server(entries.private)
        if self._take_over is None:
            await self._serve_public(shared)
        parts.supervisor.start()
        # A signal must take effect even while the start hangs.
        starting = asyncio.create_task(self._bring_up())
        stopping = asyncio.create_task(parts.stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        if self._take_over is not None:
            await self._take_over.decide()
            await self._serve_public(self._bind_public())
            await self._take_over.serving()
        await self._take_overs.start(parts.folder.path / "take-over.sock")
        parts.journal.tell_take_over_socket(parts.folder.path / "take-over.sock")

    def _bind_public(self) -> list[socket.socket]:
        """Bind the client addresses; return those sockets that several users share."""
        parts, entries = self._parts, self._entries
        take_over = self._take_over is not None
        shared: list[socket.socket] = []
        if parts.configuration.allow_users:
            bind(entries.public, parts.folder.socket("users.sock"), insecure=False)
        for address in parts.configuration.listen:
            parsed = parse_address(address)
            if parts.configuration.allow_users and isinstance(parsed, UnixAddress):
                listener, listening = listen_for_users(parsed, take_over=take_over)
                entries.listeners.append(listener)
                shared.append(listening)
                continue
            has_tokens = parts.access.authentication.has_tokens
            listener = bind(
                entries.public,
                address,
                insecure=parts.configuration.insecure,
                tls=parts.access.tls,
                has_tokens=has_tokens,
                take_over=take_over,
            )
            entries.listeners.append(listener)
            if not has_tokens and not (parts.access.tls and parts.access.tls.asks_clients):
                warn_of_other_users(listener.address)
        if parts.configuration.http is not None:
            self._start_monitoring(parts.configuration.http, take_over=take_over)
        return shared

    async def _serve_public(self, shared: Sequence[socket.socket]) -> None:
        parts, entries = self._parts, self._entries
        for listener in entries.listeners:
            listener.tell_lane(entries.client_lane)
        await start_server(entries.public)
        for listening in shared:
            await parts.access.shared_socket.listen(listening)

    async def _hold(self, patience: float) -> str:
        """Hold changes and close the journal; return the reason if that is impossible, else ""."""
        parts, entries = self._parts, self._entries
        if not await entries.interceptor.registry.hold(patience):
            return f"a change of its registry has taken longer than {patience:g} s"
        await parts.journal.release()
        return ""

    def _failed(self) -> list[str]:
        return [each.name for each in self._parts.libraries.catalog.newest() if each.error]

    async def _take_back(self) -> None:
        """Undo ``_hold``. Raises JournalError while another process owns the journal."""
        parts, entries = self._parts, self._entries
        for listener in entries.listeners:
            listener.put_back()
        await parts.journal.reopen()
        parts.journal.tell_take_over_socket(parts.folder.path / "take-over.sock")
        entries.interceptor.registry.resume()

    def _start_monitoring(self, address: str, *, take_over: bool) -> None:
        parts, entries = self._parts, self._entries
        try:
            monitoring = entries.monitoring
        except ImportError as error:
            raise StartError(
                f"--http needs packages that are not installed ({error}): install opdispatch[http]"
            ) from error
        self._monitoring = monitoring
        insecure = parts.configuration.insecure
        self._urls = [monitoring.start(address, insecure=insecure, take_over=take_over)]

    async def _bring_up(self) -> None:
        parts = self._parts
        ready = parts.sessions.wait_until(
            lambda: len(parts.pools.ready(None)) >= len(parts.names), START_TIMEOUT
        )
        are_ready, trouble = await parts.supervisor.unless_quarantined(ready)
        if trouble:
            raise StartError(f"{trouble}; the log has its output")
        if not are_ready:
            count = len(parts.pools.ready(None))
            raise StartError(
                f"{count} of {len(parts.names)} interpreters were ready after {START_TIMEOUT:g} s; "
                "the log has their output"
            )
        wait = RESTORE_WAIT if self._take_over is None else TAKE_OVER_WAIT
        is_restored = await parts.libraries.restore(wait)
        if self._take_over is not None:
            self._take_over.check_loaded(parts.libraries.catalog.newest(), is_all=is_restored)
        if not is_restored:
            LOG.warning(
                "some libraries are still being loaded; they serve when they are",
                extra=fields(Event.LIBRARY_RESTORED),
            )
        for source in parts.configuration.libraries:
            await self._load(source)

    async def _load(self, source: LoadSource) -> None:
        parts = self._parts
        if source.content is not None:
            await asyncio.to_thread(store_content, parts.store, source)
        async with reading_load_request(source.request, parts.store) as order:
            await parts.libraries.load(order)

    async def _shut_down(self) -> None:
        parts, entries = self._parts, self._entries
        is_given = self._take_overs.is_given
        await self._take_overs.stop()
        if not is_given:  # otherwise the other daemon logs this
            await parts.health.drain()
        entries.interceptor.registry.stop()
        entries.waits.stop()
        entries.feed.stop()
        entries.value_leases.stop()
        parts.routes.end()
        if is_given:
            # New requests go to the other daemon at once; those received here finish here.
            going = asyncio.create_task(entries.public.stop(GIVEN_GRACE))
        if not await parts.router.drain(GIVEN_GRACE if is_given else CALLS_GRACE):
            LOG.warning(
                "calls that are still running are cut off", extra=fields(Event.CALLS_CUT_OFF)
            )
        if is_given:
            await parts.router.wait_for_quiet(QUIET, QUIET_AT_MOST)
        await parts.libraries.stop()
        await parts.environments.stop()
        parts.blame.stop()  # first: the next line ends interpreters, and the calls running in them
        entries.interpreter_servicer.stop()
        await entries.interpreter_servicer.wait_for_endings()
        monitoring = asyncio.create_task(self._stop_monitoring())
        await entries.public.stop(SERVER_GRACE)
        if is_given:
            await going
        if parts.configuration.allow_users:
            await parts.access.shared_socket.close()
        entries.lanes.close()
        await parts.supervisor.stop(WORKERS_GRACE)
        await parts.pools.wait_for_endings()
        await entries.private.stop(0)
        await monitoring
        await asyncio.to_thread(trace_context.shut_down)
        await parts.journal.close()
        if self._take_over is not None:
            self._take_over.close()  # after a failed start the other daemon takes the journal back
        self._clean_up()

    async def _stop_monitoring(self) -> None:
        if self._monitoring is not None:
            await asyncio.to_thread(self._monitoring.stop)

    def _clean_up(self) -> None:
        parts, entries = self._parts, self._entries
        for listener in entries.listeners:
            listener.close()
        parts.folder.remove()

    def _handle_signals(self, read_again: Callable[[], DaemonConfiguration]) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup, _has_terminal(), read_again)

    def _on_hangup(self, had_terminal: bool, read_again: Callable[[], DaemonConfiguration]) -> None:
        if had_terminal and not _has_terminal():
            self._on_signal()  # what SIGHUP meant first: the terminal has been closed
            return
        if self._status:  # a daemon that is still starting has nothing to reload
            self._manager.reloading()
        try:
            self._reconfigure(read_again())
        except ConfigurationError as error:
            LOG.error("%s", error, extra=fields(Event.CONFIGURATION_REFUSED))
        if self._status:
            self._manager.ready(self._status)

    def _reconfigure(self, wanted: DaemonConfiguration) -> None:
        parts = self._parts
        old, new = parts.configuration._asdict(), wanted._asdict()
        changed = {name for name in new if new[name] != old[name]}
        parts.reconfigure(**{name: new[name] for name in changed & CHANGED_WHILE_RUNNING})
        LOG.info(
            "the configuration was read again: %s; at the next start: %s",
            ", ".join(sorted(changed & CHANGED_WHILE_RUNNING)) or "nothing changed",
            ", ".join(sorted(changed - CHANGED_WHILE_RUNNING)) or "nothing else",
            extra=fields(Event.CONFIGURATION_READ),
        )

    def _on_signal(self) -> None:
        parts = self._parts
        if not parts.stop.is_set():
            parts.stop.set()
            return
        # A second signal: the user does not want to wait.
        parts.supervisor.kill_all()
        self._clean_up()
        os._exit(1)


def _set_up_tracing(target: str) -> None:
    """Call the user's function that sets a tracer provider. Raises StartError if that fails."""
    try:
        trace_context.set_up(target, "opdispatch daemon")
    except Exception as error:  # user code may raise anything
        raise StartError(
            f"--tracing {target} raised {type(error).__name__}: {error}; expected MODULE:FUNCTION, "
            "which sets a tracer provider"
        ) from error


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal that has not been closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
