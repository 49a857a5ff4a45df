"""The asyncio session with a daemon.

async with opdispatch_client.aio.connect() as session:
    edges = await session.ops.image.sobel(picture)

    session            the session
    calling            the session's methods for calls, values and programs
    submission         one call, and many of them: written by hand
    program            programs: recorded, or traced from functions
    remote_calls       values put into interpreters, fetched and moved
    tensor_transfers   the requests of a remote tensor to its session
    remote_tensor      remote tensors: written by hand

    connection         the channel, and the parts of a session that use it
    calls              sends calls to the daemon, or directly to an interpreter
    value_lease        the stream that keeps remote tensors alive
    operator_catalog   names and descriptions, without blocking the event loop
    one_loop           checks that a session is used in its own event loop

``make blocking`` writes ``opdispatch_client.blocking`` from the sources among them.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, NoReturn

from opdispatch_client.aio.session import AsyncSession, open_session
from opdispatch_client.endpoint import TIMEOUT_DEFAULT, Endpoint, LaneChoice, resolve_endpoint

__all__ = ["AsyncSession", "Connecting", "connect"]


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
) -> Connecting:
    """Open a session: ``async with connect() as session`` or ``session = await connect()``.

    Parameters and errors are those of ``opdispatch_client.connect``; errors of the daemon are
    raised when the result is entered or awaited.
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
    return Connecting(endpoint)


class Connecting:
    """A session that is not open yet; await it, or enter it with ``async with``."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, None, AsyncSession]:
        return open_session(self._endpoint).__await__()

    def __getattr__(self, name: str) -> NoReturn:
        how = "say `async with connect() as session`, or `session = await connect()`"
        raise AttributeError(f"a session that is not open yet has no {name!r}: {how}")

    async def __aenter__(self) -> AsyncSession:
        self._session = await open_session(self._endpoint)
        return self._session

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
