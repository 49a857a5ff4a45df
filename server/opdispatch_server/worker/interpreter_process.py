"""The main function of a worker interpreter's process.

The daemon starts its own through ``interpreter_start``; users run ``opdispatch worker``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import importlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import grpc

from opdispatch.errors import DeviceError, OpdispatchError
from opdispatch_server.blame.flight_record import process_recorder
from opdispatch_server.blame.lock_holder import DUMP_SIGNAL
from opdispatch_server.device_discovery import NO_DEVICE_STATUS
from opdispatch_server.fork_guard import GUARD
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.logs import RELAY, add_filter, configure_logging
from opdispatch_server.parent_watch import die_with_parent
from opdispatch_server.serving.run_folder import RunFolder
from opdispatch_server.worker.interpreter import Interpreter
from opdispatch_server.worker.interpreter_settings import InterpreterSettings
from opdispatch_server.worker.kernel_log_filter import KernelLogFilter
from opdispatch_server.worker.returning_interpreter import ReturningInterpreter
from opdispatch_wire.addresses import AddressError, check_socket_owner, is_loopback
from opdispatch_wire.channel import channel_options
from opdispatch_wire.credentials import NO_CREDENTIALS, Credentials
from opdispatch_wire.errors import WireError
from opdispatch_wire.protocol_version import PROTOCOL_VERSION, SAME_VERSION_HINT, describe_mismatch
from opdispatch_wire.status import error_from_rpc
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc

HANDSHAKE_TIMEOUT = 10.0
# Imported with the first blocking channel, which each interpreter creates: so their template
# imports it.
importlib.import_module("grpc._channel")

LOG = logging.getLogger("opdispatch.interpreter")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one of the daemon's interpreters until its session ends, then leave the process."""
    options = _parse(argv)
    _tell_of_trouble()
    GUARD.install()
    GUARD.own_descriptor(die_with_parent(options.parent))
    configure_logging(options.log_level, RELAY)
    add_filter(KernelLogFilter(process_recorder()))
    settings = InterpreterSettings(
        daemon=options.daemon,
        listen=options.listen,
        max_message_bytes=options.max_message_bytes,
        name=options.name,
        lane=options.lane,
        direct_lane=options.direct_lane,
        device=options.device,
    )
    try:
        asyncio.run(_serve(settings))
    except (OpdispatchError, OSError) as error:
        LOG.error("%s", error, extra=fields(Event.INTERPRETER_ENDED))
        # Not for subclasses: a device may have free memory again.
        leave_process(NO_DEVICE_STATUS if type(error) is DeviceError else 1)
    leave_process(0)


def run_user_interpreter(
    daemon: str,
    listen: str,
    *,
    name: str,
    insecure: bool,
    reconnect: float,
    cache: Path | None = None,
    credentials: Credentials = NO_CREDENTIALS,
) -> None:
    """Run an interpreter that a user started, until it is to stop.

    By default it listens at an address that a daemon on this machine can reach. If the daemon
    vanishes, it tries to reconnect for ``reconnect`` seconds. Raises AddressError, OSError,
    DaemonUnavailableError, also when the daemon ends the session, and the error with which the
    daemon refuses it.
    """
    folder = None
    try:
        if not listen:
            if not is_loopback(daemon):
                raise AddressError(
                    f"{daemon} is on another machine, and nothing says where the daemon can reach "
                    "this interpreter",
                    hint="add --listen HOST:PORT",
                )
            folder = RunFolder.create()
            listen = folder.socket("calls.sock")
        _tell_of_trouble()
        GUARD.install()
        add_filter(KernelLogFilter(process_recorder()))

        numbers = itertools.count(1)

        def settings(name: str) -> InterpreterSettings:
            limit = _ask_message_limit(daemon, credentials)
            if folder is None:
                return InterpreterSettings(
                    daemon, listen, limit, name, insecure, cache=cache, credentials=credentials
                )
            # Each session has its own, because clients may still use that of the previous one.
            direct = folder.lane(f"direct-{next(numbers)}")
            lane = folder.lane("calls")
            return InterpreterSettings(
                daemon,
                listen,
                limit,
                name,
                insecure,
                lane,
                direct,
                cache=cache,
                credentials=credentials,
            )

        asyncio.run(_serve_again(ReturningInterpreter(settings, name, reconnect)))
    finally:
        if folder is not None:
            folder.remove()


def leave_process(status: int) -> NoReturn:
    """End the process even if kernels are still running in threads, perhaps forever."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _tell_of_trouble() -> None:
    """Enable tracebacks of crashes, and the logging of warnings."""
    faulthandler.enable(all_threads=False)
    # The daemon requests this before it stops an interpreter whose lock a kernel holds: it needs no
    # lock.
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    logging.captureWarnings(True)  # also those of libraries: they have a level


def _keep_grpc() -> None:
    """Keep gRPC's polling thread and its core alive as long as the process.

    They would be shut down with the last server and channel of a session, concurrently with other
    parts of the process: a crash there would hide why the interpreter ends. Call it in the event
    loop: without one, gRPC creates its own, which forks would inherit.
    """
    grpc.aio.init_grpc_aio()


def _ask_message_limit(daemon: str, credentials: Credentials) -> int:
    check_socket_owner(daemon)
    options = channel_options(address=daemon)
    with credentials.channel(daemon, options) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)  # type: ignore[no-untyped-call]
        request = registry_pb2.GetServerInfoRequest(protocol_version=PROTOCOL_VERSION)
        try:
            reply = stub.GetServerInfo(request, timeout=HANDSHAKE_TIMEOUT)
        except grpc.RpcError as error:
            raise error_from_rpc(error, address=daemon) from None
        if reply.protocol_version != PROTOCOL_VERSION:
            raise WireError(
                describe_mismatch(
                    reply.protocol_version, f"the daemon at {daemon}", "this interpreter"
                ),
                hint=SAME_VERSION_HINT,
            )
        return int(reply.max_message_bytes)


async def _serve_again(interpreter: ReturningInterpreter) -> None:
    _keep_grpc()
    _stop_on_signals(interpreter.stop)
    await interpreter.run()


async def _serve(settings: InterpreterSettings) -> None:
    _keep_grpc()
    interpreter = Interpreter(settings)
    _stop_on_signals(interpreter.stop)
    await interpreter.run()


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A worker interpreter that the daemon starts; by hand: `opdispatch worker`."
    )
    parser.add_argument("--daemon", required=True, help="the daemon's address")
    parser.add_argument("--listen", required=True, help="where to take calls")
    parser.add_argument("--lane", required=True, help="the path of the daemon's local lane")
    parser.add_argument("--direct-lane", required=True, help="the same, for calls of clients")
    parser.add_argument("--device", default="", help="the only one that it uses beside the CPU")
    parser.add_argument("--name", required=True, help="the interpreter's name")
    parser.add_argument("--parent", required=True, type=int, help="the daemon's process id")
    parser.add_argument("--max-message-bytes", required=True, type=int, help="the message limit")
    parser.add_argument("--log-level", default="info", help="what to log")
    return parser.parse_args(argv)
