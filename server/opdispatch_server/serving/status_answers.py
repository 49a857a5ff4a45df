"""Convert errors to gRPC statuses, from which clients rebuild them."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.rpc import status_pb2

from opdispatch.errors import OpdispatchError
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.serving.grpc_services import Malformed
from opdispatch_wire.status import end_with, find_status_code, status_from_error

LOG = logging.getLogger("opdispatch.requests")

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Context = grpc.aio.ServicerContext[Any, Any]
Method = Callable[[Any, Request, Context], Awaitable[Reply]]
StreamMethod = Callable[[Any, Request, Context], AsyncGenerator[Reply, None]]

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class StatusError(Exception):
    """Ends a request with a status other than that of an error's class, or a received status."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self.status = status

    @classmethod
    def with_code(cls, error: OpdispatchError, code: grpc.StatusCode) -> StatusError:
        """Return the status of ``error`` with another code."""
        status = status_from_error(error)
        status.code = code.value[0]
        return cls(status)

    @property
    def code(self) -> grpc.StatusCode:
        """The gRPC status code."""
        return _CODES.get(self.status.code, grpc.StatusCode.UNKNOWN)


def answers(method: Method[Request, Reply]) -> Method[Request, Reply]:
    """Wrap a servicer's method to convert its errors to statuses.

    OpdispatchErrors keep their class. An interpreter's error is passed on unchanged. Anything else
    is a bug: the client learns its type, and the log has the traceback.
    """

    @functools.wraps(method)
    async def answering(self: Any, request: Request, context: Context) -> Reply:
        try:
            if isinstance(request, Malformed):
                raise request.error()
            return await method(self, request, context)
        except Exception as error:
            _answer(error, method.__name__, context)
            return cast("Reply", None)  # gRPC sends no reply with an error status

    return answering


def answers_in_steps(method: StreamMethod[Request, Reply]) -> StreamMethod[Request, Reply]:
    """Convert errors like ``answers``, for a method that returns a stream."""

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
            _answer(error, method.__name__, context)

    return answering


def _answer(error: Exception, what: str, context: Context) -> None:
    if isinstance(error, StatusError):
        end_with(context, error.status, error.code)
    else:
        if not isinstance(error, OpdispatchError) and not _is_of_stopped_server(error):
            LOG.error("%s failed", what, exc_info=error, extra=fields(Event.INTERNAL_ERROR))
        end_with(context, status_from_error(error), find_status_code(error))
    forget_frames(error)


def _is_of_stopped_server(error: Exception) -> bool:
    """Return whether it is gRPC's error for streams that are open when the server stops."""
    others = (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.AbortError)
    return isinstance(error, grpc.aio.BaseError) and not isinstance(error, others)


def forget_frames(error: BaseException) -> None:
    """Drop the frames of a reported error and of its causes, to release their variables.

    A traceback refers to the variables of every function on the way, one of which may be the error:
    the request and everything it refers to would wait for the garbage collector.
    """
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None:
            pending += each.__cause__, each.__context__
            if isinstance(each, BaseExceptionGroup):
                pending += each.exceptions
            each.__cause__ = each.__context__ = each.__traceback__ = None
