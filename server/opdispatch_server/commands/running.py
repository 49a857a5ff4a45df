"""``opdispatch serve`` and ``opdispatch worker``; the client's command line finds them by name.

Modules that take long to import are imported by the command that needs them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from opdispatch_server import deferred_numpy

deferred_numpy.defer()  # before any module that imports NumPy

from opdispatch_server.commands.access_options import (
    QUOTAS,
    AllowUser,
    AuditLog,
    QuotaBytes,
    QuotaCalls,
    QuotaQueueShare,
    QuotaSessions,
    QuotaUploads,
    QuotaValueBytes,
    QuotaValues,
    TlsCa,
    TlsCert,
    TlsClientCa,
    TlsKey,
    TokenFile,
    Tokens,
    WorkerTlsCert,
)
from opdispatch_server.commands.configuration_file import reread
from opdispatch_server.commands.options import (
    Cache,
    Config,
    DaemonAddress,
    DirectPorts,
    Heartbeat,
    Http,
    Insecure,
    KernelTimeout,
    Libraries,
    LibraryDiskBytes,
    Listen,
    LoadTimeout,
    LockTimeout,
    LogFormat,
    LogLevel,
    MaxCallBytes,
    MaxLibraryBytes,
    MaxMessageBytes,
    MetricsCompat,
    QuarantineAfter,
    Queue,
    Reconnect,
    RemoteBytes,
    RemoteValues,
    SlowCall,
    State,
    TakeOver,
    Tracing,
    WorkerListen,
    WorkerName,
    Workers,
    parse_ports,
)
from opdispatch_server.daemon.processes.worker_plan import parse_workers
from opdispatch_server.daemon_configuration import (
    HEARTBEAT_DEFAULT,
    LIBRARY_BYTES_DEFAULT,
    LIBRARY_DISK_BYTES_DEFAULT,
    LOAD_TIMEOUT_DEFAULT,
    LOCK_TIMEOUT_DEFAULT,
    QUEUE_DEFAULT,
    REMOTE_BYTES_DEFAULT,
    REMOTE_VALUES_DEFAULT,
    DaemonConfiguration,
    default_state_folder,
    default_worker_count,
    installed_version,
)
from opdispatch_server.logs import configure_logging, write_audit_log
from opdispatch_server.serving.service_manager import ServiceManager
from opdispatch_wire.addresses import AddressError, UnsafeAddressError, default_address
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT
from opdispatch_wire.printable import printable_line, printable_message

if TYPE_CHECKING:
    from opdispatch_server.daemon.processes.template import Template
    from opdispatch_wire.library_source import LoadSource

FAILED = 1
WRONG_USAGE = 2
RECONNECT_DEFAULT = 60.0


def serve(
    context: typer.Context,
    config: Config = None,
    listen: Listen = None,
    workers: Workers = None,
    library: Libraries = None,
    state: State = None,
    max_message_bytes: MaxMessageBytes = MAX_MESSAGE_BYTES_DEFAULT,
    max_call_bytes: MaxCallBytes = None,
    load_timeout: LoadTimeout = LOAD_TIMEOUT_DEFAULT,
    heartbeat: Heartbeat = HEARTBEAT_DEFAULT,
    lock_timeout: LockTimeout = LOCK_TIMEOUT_DEFAULT,
    quarantine: QuarantineAfter = None,
    queue: Queue = QUEUE_DEFAULT,
    kernel_timeout: KernelTimeout = None,
    remote_values: RemoteValues = REMOTE_VALUES_DEFAULT,
    remote_bytes: RemoteBytes = REMOTE_BYTES_DEFAULT,
    max_library_bytes: MaxLibraryBytes = LIBRARY_BYTES_DEFAULT,
    library_disk_bytes: LibraryDiskBytes = LIBRARY_DISK_BYTES_DEFAULT,
    direct_ports: DirectPorts = "any",
    tokens: Tokens = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    allow_user: AllowUser = None,
    quota_calls: QuotaCalls = None,
    quota_bytes: QuotaBytes = None,
    quota_sessions: QuotaSessions = None,
    quota_uploads: QuotaUploads = None,
    quota_values: QuotaValues = None,
    quota_value_bytes: QuotaValueBytes = None,
    quota_queue_share: QuotaQueueShare = None,
    audit_log: AuditLog = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
    insecure: Insecure = False,
    take_over: TakeOver = False,
    http: Http = None,
    metrics_compat: MetricsCompat = None,
    slow_call: SlowCall = None,
    tracing: Tracing = None,
) -> None:
    """Run the daemon, in the foreground.

    It prints a line "opdispatch VERSION listening on ADDR" for each address when it is ready.
    SIGTERM and Ctrl-C let the calls in flight finish, then stop it and its worker
    interpreters, within 5 seconds; a second signal stops it at once. SIGHUP makes it read
    the configuration file again.
    """
    # All options in one mapping: SIGHUP creates another one, with the new values of the file.
    configuration = _configuration(context.params)
    _quiet_grpc()
    manager = ServiceManager()  # before the template copies the environment
    with _without_collector():
        from opdispatch.errors import OpdispatchError

        template = _fork_template()
        from opdispatch_server.access.token_file import TokensError
        from opdispatch_server.daemon.lifecycle import ConfigurationError, StartError
        from opdispatch_server.daemon.take_over import TakeOverError
        from opdispatch_server.serving.listeners import AddressInUseError
        from opdispatch_server.serving.server_certificates import TlsError
    configure_logging(log_level, log_format)

    def read_again() -> DaemonConfiguration:
        try:
            return _configuration(reread(context, config))
        except typer.BadParameter as error:
            raise ConfigurationError(error.message) from error

    try:
        if audit_log is not None:
            write_audit_log(audit_log)
        asyncio.run(_serve(configuration, template, manager, read_again))
    except OpdispatchError as error:
        _fail(str(error), _status_of(error), error.facts.get("traceback", ""))
    except (StartError, TakeOverError, TokensError, TlsError, AddressInUseError, OSError) as error:
        _fail(str(error), FAILED)


def worker(
    config: Config = None,
    daemon: DaemonAddress = None,
    name: WorkerName = "",
    listen: WorkerListen = "",
    reconnect: Reconnect = RECONNECT_DEFAULT,
    cache: Cache = None,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_cert: WorkerTlsCert = None,
    tls_key: TlsKey = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
    insecure: Insecure = False,
) -> None:
    """Run one more worker interpreter for a daemon, in the foreground.

    It ends when the daemon is stopped, and on Ctrl-C: the libraries that it holds move to
    other interpreters. When the daemon vanishes, it releases its libraries and looks for
    the daemon again.
    """
    _quiet_grpc()
    with _without_collector():
        from opdispatch.errors import OpdispatchError
        from opdispatch_server.fork_guard import NO_FORK_SUPPORT

        os.environ.update(NO_FORK_SUPPORT)
        from opdispatch_server.worker.interpreter_process import leave_process, run_user_interpreter
        from opdispatch_wire.credentials import Credentials

    configure_logging(log_level, log_format)
    status = 0
    try:
        address = daemon or default_address()
        run_user_interpreter(
            address,
            listen,
            name=name,
            insecure=insecure,
            reconnect=reconnect,
            cache=cache,
            credentials=Credentials.of(
                token_file=token_file, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key
            ),
        )
    except (OpdispatchError, OSError) as error:
        print(f"opdispatch: {printable_message(str(error))}", file=sys.stderr)
        status = _status_of(error)
    leave_process(status)


# How long a thread may keep the event loop waiting for the interpreter lock: Python's default of 5
# ms would add up while a large library is being published.
_SWITCH_SECONDS = 0.001


# How interpreters start if there is no template to fork.
_START = "opdispatch_server.worker.interpreter_start"
_BOOTSTRAP = Path(__file__).parents[1] / "worker" / "environment_bootstrap.py"


def _fork_template() -> Template | None:
    """Fork the template of interpreters, once the modules that both need are imported."""
    from opdispatch_server.fork_guard import NO_FORK_SUPPORT

    # Read once, when gRPC is imported: interpreters inherit it.
    os.environ.update(NO_FORK_SUPPORT)
    import grpc  # noqa: F401

    import opdispatch  # noqa: F401
    from opdispatch_server.daemon.processes.template import Template
    from opdispatch_wire.v1 import execution_pb2, interpreter_pb2  # noqa: F401

    def main(channel: socket.socket) -> None:
        from opdispatch_server.worker import template_process

        template_process.main(channel)

    return Template.fork(main)


async def _serve(
    configuration: DaemonConfiguration,
    template: Template | None,
    manager: ServiceManager,
    read_again: Callable[[], DaemonConfiguration],
) -> None:
    from opdispatch_server.daemon.lifecycle import Daemon
    from opdispatch_server.daemon.processes.worker_commands import InterpreterEntry
    from opdispatch_server.serving.run_folder import RunFolder

    sys.setswitchinterval(_SWITCH_SECONDS)
    folder = RunFolder.create()
    try:
        entry = InterpreterEntry(_START, _BOOTSTRAP, template)
        await Daemon(configuration, folder, entry, manager).run(_announce, read_again)
    finally:
        folder.remove()


def _configuration(values: Mapping[str, Any]) -> DaemonConfiguration:
    """Return the configuration from the options of ``serve``, by parameter name."""
    return DaemonConfiguration(
        listen=tuple(values["listen"] or [default_address()]),
        workers=parse_workers(values["workers"] or str(default_worker_count())),
        state=values["state"] or default_state_folder(),
        libraries=tuple(map(_read_library, values["library"] or ())),
        max_message_bytes=values["max_message_bytes"],
        max_call_bytes=values["max_call_bytes"],
        load_timeout=values["load_timeout"],
        heartbeat=values["heartbeat"],
        lock_timeout=values["lock_timeout"],
        quarantine_after=values["quarantine"],
        queue=values["queue"],
        kernel_timeout=values["kernel_timeout"],
        remote_values=values["remote_values"],
        remote_bytes=values["remote_bytes"],
        max_library_bytes=values["max_library_bytes"],
        library_disk_bytes=values["library_disk_bytes"],
        direct_ports=parse_ports(values["direct_ports"]),
        insecure=values["insecure"],
        take_over=values["take_over"],
        log_level=values["log_level"],
        tokens=values["tokens"],
        http=values["http"],
        metrics_compat=values["metrics_compat"],
        slow_call=values["slow_call"],
        tracing=values["tracing"],
        tls_cert=values["tls_cert"],
        tls_key=values["tls_key"],
        tls_client_ca=values["tls_client_ca"],
        allow_users=tuple(values["allow_user"] or ()),
        quotas=tuple(values[f"quota_{each}"] for each in QUOTAS),
    )


def _announce(addresses: Sequence[str]) -> None:
    for address in addresses:
        print(
            f"opdispatch {installed_version()} listening on {printable_line(address)}", flush=True
        )


def _read_library(source: str) -> LoadSource:
    from opdispatch_wire.errors import LibraryLoadError
    from opdispatch_wire.library_source import load_source

    try:
        return load_source(source)
    except LibraryLoadError as error:
        raise typer.BadParameter(str(error), param_hint="--library") from None


@contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector during imports, which create nothing to collect."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _quiet_grpc() -> None:
    # gRPC's C core writes to stderr on its own; relevant problems are raised as errors. It reads
    # the variable when first imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _status_of(error: Exception) -> int:
    """Return the exit code for an error: a malformed address can only be a usage error."""
    is_usage = isinstance(error, AddressError) and not isinstance(error, UnsafeAddressError)
    return WRONG_USAGE if is_usage else FAILED


def _fail(message: str, status: int, traceback: str = "") -> NoReturn:
    if traceback:
        print(printable_message(traceback), file=sys.stderr)
    print(f"opdispatch: {printable_message(message)}", file=sys.stderr)
    raise typer.Exit(status)
