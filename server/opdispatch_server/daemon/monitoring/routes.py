"""The routes that can be read over HTTP, and the access to them."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opdispatch_server.access.identity import Identity
from opdispatch_server.access.revocation import REVOCATION_CHECK_SECONDS
from opdispatch_server.daemon.monitoring.call_exposition import Piece
from opdispatch_server.daemon.monitoring.exposition import Exposition
from opdispatch_server.daemon.monitoring.facts import DaemonReader
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    PermissionDeniedError,
    RefusedError,
    UnauthenticatedError,
)

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_SCRAPES_AT_ONCE = 2


Identify = Callable[[str, str], Identity]
"""Identifies a caller by its address (``ipv4:HOST:PORT``) and the header ``authorization``.

Raises UnauthenticatedError and PermissionDeniedError.
"""

# Probes come from the machine's own supervisor, and reveal nothing.
_OPEN = frozenset({"/livez", "/readyz"})
# A browser asks its user for a password, which is the token.
_CHALLENGE = {"www-authenticate": 'Basic realm="opdispatch", charset="UTF-8"'}


class IdentityCheck:
    """The ASGI middleware that authenticates all requests except probes.

    The routes behind it are read-only, except calls: see Note [Calls from a page].
    """

    def __init__(self, app: ASGIApp, identify: Identify) -> None:
        self._app = app
        self._identify = identify

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; add headers that keep browsers from interpreting the response."""

        is_open, is_cut_off, checked_at = scope["path"] in _OPEN, False, time.monotonic()

        async def send_while_allowed(message: Message) -> None:
            nonlocal is_cut_off, checked_at
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            elif not is_open and time.monotonic() >= checked_at + REVOCATION_CHECK_SECONDS:
                # A page reads for hours, and its token may be revoked meanwhile.
                checked_at = time.monotonic()
                if not is_cut_off and await self._refusal(Request(scope)) is not None:
                    is_cut_off = True
                    # The application is then told that the client has disconnected.
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not is_cut_off:
                await send(message)

        refusal = None if is_open else await self._refusal(Request(scope))
        await (refusal or self._app)(scope, receive, send_while_allowed)

    async def _refusal(self, request: Request) -> Response | None:
        peer = f"ipv4:{request.client.host}:{request.client.port}" if request.client else ""
        authorization = _as_bearer(request.headers.get("authorization", ""))
        try:
            await asyncio.to_thread(self._identify, peer, authorization)
        except UnauthenticatedError as error:
            return PlainTextResponse(f"{error}\n", 401, headers=_CHALLENGE)
        except PermissionDeniedError as error:
            return PlainTextResponse(f"{error}\n", 403)
        return None


def _as_bearer(authorization: str) -> str:
    """Convert a browser's header, whose password is a token, to one with a bearer token."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return authorization
    try:
        return f"Bearer {base64.b64decode(value).decode().partition(':')[2]}"
    except ValueError:
        return ""


async def _each(pieces: Iterable[Piece]) -> AsyncIterator[Piece]:
    for piece in pieces:
        yield piece


def make_app(
    facts: DaemonReader,
    exposition: Exposition,
    identify: Identify,
    hosts: list[str],
    more: list[Route],
) -> Starlette:
    """Return the application.

    ``hosts`` are the names under which it accepts requests, so that a page of another site cannot
    reach it through a domain name of that site (DNS rebinding).
    """
    scrapes = asyncio.Semaphore(_SCRAPES_AT_ONCE)

    async def metrics(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        async with scrapes:
            pieces, content_type = await asyncio.to_thread(exposition.scrape, accept)
        # Of tens of megabytes, only what is being sent is in memory.
        return StreamingResponse(_each(pieces), headers={"content-type": content_type})

    async def livez(request: Request) -> Response:
        await asyncio.to_thread(facts.ask, time.monotonic)
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        if await asyncio.to_thread(facts.is_ready):
            return PlainTextResponse("ok\n")
        return PlainTextResponse("no interpreter serves calls\n", 503)

    async def unavailable(request: Request, error: Exception) -> Response:
        return PlainTextResponse(f"{error}\n", 503)

    answers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/metrics": metrics,
        "/livez": livez,
        "/readyz": readyz,
    }
    return Starlette(
        routes=[*(Route(path, answer) for path, answer in answers.items()), *more],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(IdentityCheck, identify),
        ],
        exception_handlers={DaemonUnavailableError: unavailable, RefusedError: unavailable},
    )
