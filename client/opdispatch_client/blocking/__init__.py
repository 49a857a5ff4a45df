"""The blocking session with a daemon.

with connect() as session:
    session.load("image_ops.py")
    edges = session.ops.image.sobel(picture)

    Written by ``make blocking`` from ``opdispatch_client.aio``, which says what is in them:

    session, calling, program, remote_calls, tensor_transfers

    Written by hand:

    submission         one call, and many under way: submit, map
    ordered_results    what map returns
    call_future        what submit returns
    submitted_futures  how many there are of these, and where their callbacks run
    remote_tensor      remote tensors, which are tensors to the dispatcher
    connection         the channel, and what a session makes of it
    calls              how calls travel: to the daemon, or directly to an interpreter
    planned_calls      those that follow plans
    daemon_calls       those that wait for the daemon
    value_lease        what keeps remote tensors alive
    one_thread         where callbacks run, and calls are made again
"""

from __future__ import annotations

import os

from opdispatch_client.blocking.session import Session, open_session
from opdispatch_client.endpoint import TIMEOUT_DEFAULT, LaneChoice, resolve_endpoint

__all__ = ["Session", "connect"]


def connect(
    address: str | None = None,
    *,
    timeout: float | None = TIMEOUT_DEFAULT,
    max_message_bytes: int | None = None,
    lane: LaneChoice = "auto",
    retry: bool = True,
    direct: bool = True,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    daemon_user: str | None = None,
    wait: float | None = None,
) -> Session:
    """Open a session with the daemon at `address`.

    The address is like ``unix:///run/opdispatch.sock``, ``dns:///host:port`` or
    ``host:port``; without one, it is ``OPDISPATCH_ADDRESS`` or the daemon's default. Each
    request of the session may take `timeout` seconds, or any time with None. Messages are
    limited to the daemon's own limit, or to `max_message_bytes` where that is less. A call whose
    interpreter dies runs again in another one that holds the library, unless its operator writes
    to an argument; never if `retry` is false (see ``Session.with_options``).

    Calls take the local lane, a unix socket without gRPC, if the daemon is a process of the same
    user on the same machine, and gRPC otherwise: one stream for all calls, or a request for each.
    `lane` may insist on "local", "stream" or "grpc". Over the local lane, calls like one that the
    daemon has answered go to the interpreters themselves, unless `direct` is false.

    At a TCP port, the daemon may ask for a `token`, or the one in a `token_file`, which is read
    again when it changes; without either, they are ``OPDISPATCH_TOKEN`` and
    ``OPDISPATCH_TOKEN_FILE``. At a unix socket it is not sent: the system says whose process asks.
    With `tls_ca`, the file of the CA of its certificate, a port is reached over TLS; `tls_cert` and
    `tls_key` are the client's own certificate and key, where the daemon asks for them. They are
    ``OPDISPATCH_TLS_CA``, ``OPDISPATCH_TLS_CERT`` and ``OPDISPATCH_TLS_KEY`` where they are not
    given, and are read again when they change. At a unix socket, a daemon has to be a process of
    this process's user, of root, or of `daemon_user`, a name or an id, which may be
    ``OPDISPATCH_DAEMON_USER``.

    Requests wait up to `wait` seconds for a daemon that restarts, and so does ``connect`` itself;
    without `wait`, requests wait up to 30 seconds, and ``connect`` does not. What has not begun
    is sent then; what may have run is sent again, once, only if that does no harm: a call
    whose operator writes to no argument, unless `retry` is false, and a request that changes
    nothing. With 0, nothing waits.

    Raises AddressError for an address that is none, DaemonUnavailableError if no daemon answers
    there, WireError if the daemon speaks another version of the protocol, UnauthenticatedError
    for a token that is not valid there, and PermissionDeniedError for one that allows no calls.
    """
    endpoint = resolve_endpoint(
        address,
        timeout=timeout,
        max_message_bytes=max_message_bytes,
        lane=lane,
        retry=retry,
        direct=direct,
        token=token,
        token_file=token_file,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        daemon_user=daemon_user,
        wait=wait,
    )
    return open_session(endpoint)
