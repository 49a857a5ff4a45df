"""The interceptor of a gRPC server: authenticates every request before it is served."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_server.access.authentication import CALLER
from opdispatch_server.access.identity import Identity
from opdispatch_server.access.refusal_pace import RefusalPace
from opdispatch_server.access.revocation import Revocation, revoked_error
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.registry_gate import REGISTRY, RegistryGate
from opdispatch_wire.errors import PermissionDeniedError, RefusedError, UnauthenticatedError
from opdispatch_wire.status import end_with, find_status_code, status_from_error

LOG = logging.getLogger("opdispatch.access")

PATIENCE = 0.5
"""Seconds that a refused stream has to send its first message."""

_IS_REFUSED: ContextVar[bool] = ContextVar("opdispatch_is_refused", default=False)

AUTHORIZATION = "authorization"

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]


class IdentitySource(Protocol):
    """The base of sources of clients' identities: by tokens or by tickets."""

    def identify(self, method: str, peer: str, authorization: str) -> Identity:
        """Return the identity of a caller who may call ``method``.

        Raises UnauthenticatedError and PermissionDeniedError.
        """

    @property
    def revocation(self) -> Revocation:
        """The registry of streams and calls to end when a token is revoked."""


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):
    """Authenticates the caller of every method, including those of other packages' services.

    Requests are parsed only after authentication, so that strangers cannot spend the daemon's time.
    """

    def __init__(self, authentication: IdentitySource) -> None:
        self._authentication = authentication
        self._pace = RefusalPace()
        self.registry = RegistryGate()
        """Holds and refuses requests to the registry."""
        self._guarded: dict[str, tuple[Handler, Handler]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the handler of a request, wrapped by the interceptor; None if there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        plain, guarded = self._guarded.get(method, (None, None))
        if plain is not handler or guarded is None:
            guarded = self._guard(method, handler)
            self._guarded[method] = handler, guarded
        return guarded

    def _guard(self, method: str, handler: Any) -> Handler:
        if handler.request_streaming:
            name = "stream_stream" if handler.response_streaming else "stream_unary"
            plain_parse, parse = handler.request_deserializer, None

            def parse_unless_refused(data: bytes) -> Any:
                return data if _IS_REFUSED.get() else plain_parse(data)

            if plain_parse is not None:
                handler = handler._replace(request_deserializer=parse_unless_refused)
        else:
            name = "unary_stream" if handler.response_streaming else "unary_unary"
            parse = handler.request_deserializer
            handler = handler._replace(request_deserializer=None)
        serve = getattr(handler, name)

        def parsed(request: Any) -> Any:
            return request if parse is None else parse(request)

        async def serving(request: Any, context: Context) -> Any:
            async with self._admitted(method, context, handler.request_streaming) as identity:
                if identity is not None:
                    return await serve(parsed(request), context)
            return None  # gRPC sends no reply with an error status

        async def streaming(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            async with self._admitted(method, context, handler.request_streaming) as identity:
                if identity is not None:
                    async with aclosing(serve(parsed(request), context)) as replies:
                        async for reply in replies:
                            yield reply

        behavior = streaming if inspect.isasyncgenfunction(serve) else serving
        guarded: Handler = handler._replace(**{name: behavior})
        return guarded

    # One generator, since thousands of requests may wait in it.
    @asynccontextmanager
    async def _admitted(
        self, method: str, context: Context, is_stream: bool
    ) -> AsyncIterator[Identity | None]:
        """Run the block with the caller's identity, or None if refused; cancel it upon revocation.

        A request to the registry waits until the registry accepts requests. The status of a refusal
        is set.
        """
        identity = await self._identify(method, context, is_stream)
        if identity is None:
            yield None
            return
        CALLER.set(identity)
        task = asyncio.current_task()
        assert task is not None, "gRPC runs every method in a task"
        is_revoked = has_entered = False

        def revoke() -> None:
            nonlocal is_revoked
            is_revoked = True
            task.cancel()

        if identity.token:
            self._authentication.revocation.begin(identity, revoke)
        try:
            if method.startswith(REGISTRY):
                try:
                    await self.registry.enter(method)
                except RefusedError as error:
                    _end(context, error)
                    yield None
                    return
                has_entered = True
            yield identity
        except asyncio.CancelledError:
            if not is_revoked or task.uncancel():
                raise
            _end(context, revoked_error(identity))
        finally:
            if has_entered:
                self.registry.leave(method)
            if identity.token:
                self._authentication.revocation.finish(revoke)

    async def _identify(self, method: str, context: Context, is_stream: bool) -> Identity | None:
        """Return the caller's identity; if refused, set the status and return None."""
        peer = context.peer() or ""
        try:
            return self._authentication.identify(method, peer, _authorization_of(context))
        except (UnauthenticatedError, PermissionDeniedError) as error:
            self._log_refusal(method, peer, error)
            await self._wait_for_refusal(peer)
            if is_stream:
                await _hear_out(context)
            _end(context, error)
            return None

    async def _wait_for_refusal(self, peer: str) -> None:
        if delay := self._pace.delay(peer):
            self._pace.waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                self._pace.waiting -= 1

    def _log_refusal(
        self, method: str, peer: str, error: UnauthenticatedError | PermissionDeniedError
    ) -> None:
        # By error class: a flood of refusals then makes few records.
        name = method.rpartition("/")[2]
        LOG.warning(
            "%s is refused to %s: %s",
            name,
            peer,
            error.message,
            extra=fields(Event.ACCESS_REFUSED, identity=peer, action=name, outcome=error.code),
        )


async def _hear_out(context: Context) -> None:
    """Read the first message of a refused stream, if it comes soon, without parsing it.

    gRPC's asyncio client forgets the status of a stream that ends while it writes.
    """
    _IS_REFUSED.set(True)
    reading = asyncio.ensure_future(context.read())
    try:
        await asyncio.wait({reading}, timeout=PATIENCE)
    finally:
        if not reading.cancel():
            reading.exception()  # marks the error as retrieved: the client has gone


def _authorization_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == AUTHORIZATION and isinstance(value, str):
            return value
    return ""


def _end(context: Context, error: OpdispatchError) -> None:
    end_with(context, status_from_error(error), find_status_code(error))
