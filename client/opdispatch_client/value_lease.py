"""The lease that keeps a session's remote tensors alive: values live while its stream is open.

Note [Letting go of a remote tensor]
    The garbage collector may run at any moment, in any thread, with locks held. A collected tensor
    therefore only puts its id into a reentrant queue (``SimpleQueue``, or a deque for asyncio). The
    stream's thread or task sends the queued ids together. A closed tensor does the same once the
    calls in flight with it have ended.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_client.daemon_wait import may_have_run
from opdispatch_client.endpoint import Endpoint
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.remote_values import PREFIX_BYTES
from opdispatch_wire.status import late_answer_error
from opdispatch_wire.v1 import remote_pb2
from opdispatch_wire.values import check_text

HOLD_VALUES = "/opdispatch.v1.ExecutionService/HoldValues"

RELEASED_AT_ONCE = 10_000
"""Most values that one message releases, since the size of messages is limited."""

Release = Callable[[bytes], None]


class Lease:
    """The id under which the daemon holds a session's values until they are released.

    ``release`` is reentrant and thread-safe.
    """

    def __init__(self, session: bytes, release: Release) -> None:
        self.session = session
        self.release = release
        self.why_over = ""
        """Reason why the values no longer exist; empty while they do."""

    def new_keep(self, on: str | None = None, device: str | None = None) -> remote_pb2.Keep:
        """Return the request to keep the results of one call, in an interpreter or on a device.

        Raises ArgumentError for anything but a string, and WireError for one that cannot be sent.
        """
        return remote_pb2.Keep(
            session=self.session,
            prefix=secrets.token_bytes(PREFIX_BYTES),
            on=None if on is None else check_text(on, "on"),
            device=None if device is None else check_text(device, "device"),
        )


@contextlib.contextmanager
def in_time(deadline: float | None, endpoint: Endpoint) -> Iterator[float]:
    """Yield the seconds that the block may take: the handshake timeout, or the time left if less.

    Converts DaemonUnavailableError to DeadlineExceededError once the deadline has passed.
    """
    timeout = endpoint.handshake_timeout
    if deadline is not None:
        timeout = min(timeout, max(deadline - time.monotonic(), 0.0))
    try:
        yield timeout
    except DaemonUnavailableError:
        if deadline is not None and time.monotonic() >= deadline:
            raise late_answer_error(endpoint.address) from None
        raise


@contextlib.contextmanager
def released_on_error(lease: Lease, keep: remote_pb2.Keep) -> Iterator[None]:
    """Release the values that a call in the block keeps, if the block raises."""
    try:
        yield
    except BaseException:
        lease.release(keep.prefix)  # the call may have run and kept values with unknown ids
        raise


def hold_values(channel: grpc.Channel | grpc.aio.Channel) -> Any:
    """Return the gRPC method that opens the lease's stream."""
    return channel.stream_stream(
        HOLD_VALUES,
        request_serializer=remote_pb2.HoldValuesRequest.SerializeToString,
        response_deserializer=remote_pb2.HoldValuesReply.FromString,
    )


def silent_daemon_error(address: str, timeout: float) -> DaemonUnavailableError:
    """Return the error for a lease that was not opened within `timeout` seconds."""
    return DaemonUnavailableError(
        f"{address} did not answer the request to hold values within {timeout:g} s",
        address=address,
    )


def why_over(error: OpdispatchError) -> str:
    """Return the reason why the values of a stream that ended with ``error`` are gone."""
    if may_have_run(error):  # its message is about calls, so it does not apply
        return "the daemon that kept it has ended, or the connection to it"
    return error.message


def no_values_error(address: str) -> DaemonUnavailableError:
    """Return the error for a daemon that ends the stream at once."""
    return DaemonUnavailableError(f"{address} holds no values", address=address)
