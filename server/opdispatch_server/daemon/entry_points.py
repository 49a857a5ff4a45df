"""The entry points of a daemon: the services, lanes and pages that callers reach."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import TYPE_CHECKING

import grpc.aio

from opdispatch_server.daemon.board.health import EXECUTION, HEALTH, INTERPRETER, REGISTRY
from opdispatch_server.daemon.caller_access import absolute
from opdispatch_server.daemon.calls.byte_budget import ByteBudget
from opdispatch_server.daemon.interpreters.call_activity import CallActivity
from opdispatch_server.daemon.parts import DaemonParts
from opdispatch_server.daemon.servicers.execution import ExecutionServicer
from opdispatch_server.daemon.servicers.hold_values import ValueLeases
from opdispatch_server.daemon.servicers.interpreters import InterpreterServicer
from opdispatch_server.daemon.servicers.local_lanes import CallLanes
from opdispatch_server.daemon.servicers.registration_waiters import RegistrationWaiters
from opdispatch_server.daemon.servicers.registry import DaemonFacts, RegistryServicer
from opdispatch_server.daemon.servicers.registry_feed import RegistryFeed
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.daemon_configuration import installed_version
from opdispatch_server.internal_message_limit import internal_message_limit
from opdispatch_server.serving.authentication_interceptor import AuthenticationInterceptor
from opdispatch_server.serving.connection_limits import public_server_options
from opdispatch_server.serving.grpc_services import (
    add_execution_service,
    add_interpreter_service,
    add_registry_service,
)
from opdispatch_server.serving.listeners import Listener
from opdispatch_server.serving.reflection import ReflectionHandler
from opdispatch_wire.addresses import TcpAddress, parse_address
from opdispatch_wire.asyncio_grpc import asyncio_server
from opdispatch_wire.channel import server_options
from opdispatch_wire.v1.interpreter_pb2 import DirectCallRules

if TYPE_CHECKING:
    from opdispatch_server.daemon.monitoring.service import Monitoring

# The limit on the bytes of large arguments that the daemon holds for clients at a time. Results are
# not included.
LARGE_CALLS_BYTES = 40 * 2**20


class EntryPoints:
    """The servers, lanes and pages of one daemon, each created on first access."""

    def __init__(self, parts: DaemonParts) -> None:
        self._parts = parts
        self._configuration = parts.configuration
        self.listeners: list[Listener] = []
        """The sockets on which clients reach the daemon, once it has them."""

    @cached_property
    def public(self) -> grpc.aio.Server:
        """The gRPC server for clients, and for interpreters that users start."""
        # A daemon that takes over may share its ports: ``listeners`` checks whose they are.
        options = {**dict(public_server_options(self._parts.message_limit)), "grpc.so_reuseport": 1}
        server = asyncio_server([*options.items()], [self.interceptor])
        add_registry_service(server, self._registry_servicer)
        add_execution_service(server, self._execution_servicer)
        add_interpreter_service(server, self.interpreter_servicer)
        self._parts.health.add_to(server)
        names = (REGISTRY, EXECUTION, INTERPRETER, HEALTH)
        server.add_generic_rpc_handlers((ReflectionHandler(names),))
        return server

    @cached_property
    def interceptor(self) -> AuthenticationInterceptor:
        """The interceptor of ``public``."""
        return AuthenticationInterceptor(self._parts.access.authentication)

    @cached_property
    def private(self) -> grpc.aio.Server:
        """The gRPC server for the daemon's own interpreters only."""
        server = asyncio_server(server_options(internal_message_limit(self._parts.message_limit)))
        add_execution_service(server, self._execution_servicer)
        add_interpreter_service(server, self.interpreter_servicer)
        return server

    @cached_property
    def lanes(self) -> CallLanes:
        """The local lanes of clients, and of kernels that run in interpreters."""
        return CallLanes(self._parts.router, ByteBudget(LARGE_CALLS_BYTES), self._view.schemas_of)

    @cached_property
    def _execution_servicer(self) -> ExecutionServicer:
        return ExecutionServicer(
            self._parts.router,
            self._parts.quotas,
            lambda number: self._parts.runs.find(number) is not None,
            self.value_leases,
            self._parts.message_limit,
            self._parts.max_call_bytes,
        )

    @cached_property
    def _registry_servicer(self) -> RegistryServicer:
        return RegistryServicer(
            DaemonFacts(
                installed_version(), self._parts.message_limit, self.addresses, self.client_lane
            ),
            self._parts.operators,
            self._parts.libraries,
            self._view,
            self.waits,
            self.feed,
            self._parts.supervisor.revive,
            self._parts.store,
            self._parts.quotas,
            self._parts.keeps,
        )

    @cached_property
    def interpreter_servicer(self) -> InterpreterServicer:
        """The servicer of ``InterpreterService``."""
        access = self._parts.access
        return InterpreterServicer(
            self._parts.sessions,
            self._parts.supervisor.find_pid,
            self._parts.ends.stop_process,
            lambda: self._parts.supervisor.names,
            self._parts.pools.find,
            self._parts.leases,
            self._parts.runs,
            self._parts.libraries.catalog.count_kernel_errors,
            self._parts.ends.judge,
            self._parts.events.unfit,
            self._parts.totals,
            DirectCallRules(
                queue_calls=self._parts.queue_limits.calls,
                queue_bytes=self._parts.queue_limits.bytes,
                kernel_timeout=self._configuration.kernel_timeout or 0.0,
                max_call_bytes=self._parts.max_call_bytes,
                tls_cert=absolute(self._configuration.tls_cert),
                tls_key=absolute(self._configuration.tls_key),
                tls_client_ca=absolute(self._configuration.tls_client_ca),
            ),
            self._parts.tickets.key_of if access.authentication.has_tokens else lambda session: b"",
            self._tcp_hosts,
            self._configuration.direct_ports,
            credentials=access.own_credentials,
            max_message_bytes=self._parts.message_limit,
            insecure=self._configuration.insecure,
            is_secured=access.is_secured,
            lane=self.kernel_lane,
            store=self._parts.store,
            slow_call=self._configuration.slow_call or 0.0,
            tracing=self._configuration.tracing or "",
        )

    @cached_property
    def value_leases(self) -> ValueLeases:
        """The streams on which clients hold values."""
        return ValueLeases(self._parts.values, self._parts.keeps)

    @cached_property
    def waits(self) -> RegistrationWaiters:
        """The clients' calls that wait for a registration."""
        return RegistrationWaiters(
            self._parts.operators, self._view, self._parts.libraries.publication
        )

    @cached_property
    def feed(self) -> RegistryFeed:
        """The registry as a stream of changes."""
        activity = CallActivity(self._parts.totals, lambda: self._parts.health.is_serving)
        return RegistryFeed(
            self._parts.operators, self._view, self._parts.libraries.publication, activity
        )

    @cached_property
    def _view(self) -> RegistryView:
        return RegistryView(
            self._parts.operators,
            self._parts.libraries,
            self._parts.sessions,
            self._parts.supervisor,
            self._parts.queues,
            self._parts.values,
            self._parts.blame,
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
                self._parts.health,
                self._parts.totals,
                lambda: self._parts.router.refusals,
            ),
            self._parts.access.authentication,
            self._configuration.metrics_compat,
            self._execution_servicer.runner_for,
            self._parts.folder.path / "http-token",
            self._parts.access.tls,
        )

    @property
    def client_lane(self) -> str:
        """The local lane of clients."""
        return self._parts.folder.lane("clients")

    @property
    def kernel_lane(self) -> str:
        """The local lane of kernels in interpreters."""
        return self._parts.folder.lane("kernels")

    def addresses(self) -> list[str]:
        """Return the addresses on which clients reach the daemon."""
        return [listener.address for listener in self.listeners]

    def _tcp_hosts(self) -> list[str]:
        parsed = map(parse_address, self._configuration.listen)
        return sorted({each.host for each in parsed if isinstance(each, TcpAddress)})
