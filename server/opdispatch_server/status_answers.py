"""How errors leave the daemon: as the status that the client rebuilds them from."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.rpc import status_pb2

from opdispatch.errors import OpdispatchError
from opdispatch_server.grpc_services import Malformed
from opdispatch_wire.status import DETAILS_KEY, abort_with, status_from_error

LOG = logging.getLogger("opdispatch.requests")

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Request, Context], Awaitable[Reply]]
StreamMethod = Callable[[Any, Request, Context], AsyncGenerator[Reply, None]]


def answers(method: Method[Request, Reply]) -> Method[Request, Reply]:
    """Makes a servicer's method answer its errors.

    Errors of ours keep their class. An error of an interpreter passes as it came. Anything
    else is a bug: the client learns its type, and the log has the traceback.
    """

    @functools.wraps(method)
    async def answering(self: Any, request: Request, context: Context) -> Reply:
        try:
            if isinstance(request, Malformed):
                raise request.error()
            return await method(self, request, context)
        except Exception as error:
            await _answer(error, method.__name__, context)

    return answering


def answers_in_steps(method: StreamMethod[Request, Reply]) -> StreamMethod[Request, Reply]:
    """``answers``, for a method that answers with a stream."""

    @functools.wraps(method)
    async def answering(
        self: Any, request: Request, context: Context
    ) -> AsyncGenerator[Reply, None]:
        try:
            if isinstance(request, Malformed):
                raise request.error()
            async with aclosing(method(self, request, context)) as replies:
                async for reply in replies:
                    yield reply
        except Exception as error:
            await _answer(error, method.__name__, context)

    return answering


async def _answer(error: Exception, what: str, context: Context) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error  # it has answered already
    if not isinstance(error, OpdispatchError):
        LOG.error("%s failed", what, exc_info=error)
    with _unless_gone():
        await abort_with(context, error)
    raise AssertionError("abort returns never")


async def abort_with_code(
    context: Context, error: OpdispatchError, code: grpc.StatusCode
) -> NoReturn:
    """Ends the call with the status of ``error``, but with another code."""
    status = status_from_error(error)
    status.code = code.value[0]
    details = ((DETAILS_KEY, status.SerializeToString()),)
    with _unless_gone():
        await context.abort(code, status.message, details)
    raise AssertionError("abort returns never")


async def abort_with_status(context: Context, status: status_pb2.Status) -> NoReturn:
    """Ends the call with an error that was a status before."""
    codes = {code.value[0]: code for code in grpc.StatusCode}
    code = codes.get(status.code, grpc.StatusCode.UNKNOWN)
    details = ((DETAILS_KEY, status.SerializeToString()),)
    with _unless_gone():
        await context.abort(code, status.message, details)
    raise AssertionError("abort returns never")


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Around an abort. gRPC cannot tell a client that cancels in that moment: nobody waits."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        raise asyncio.CancelledError from error
