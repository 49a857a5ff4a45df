"""Calls of operators from the page: JSON and pictures in, numbers and pictures out.

Note [Calls from a page]
    A browser sends its user's password with requests from any site. So a call needs a token in a
    separate header, for which the page asks its user, and which no other site can send: a token
    with the role ``call`` if the daemon has tokens, otherwise this daemon's secret, from a file
    that only its user can read. The page keeps it while it is open.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from opdispatch.errors import OpdispatchError
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.parser import parse_schema
from opdispatch_server.access.authentication import CALLER, Authentication
from opdispatch_server.access.identity import OWNER, Identity
from opdispatch_server.access.revocation import revoked_error
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.monitoring.facts import DaemonReader
from opdispatch_server.serving.call_protocols import CallRunner
from opdispatch_wire.calls import call_request, result_of_reply
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.detached_tensors import CALL_REPLY, attach
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    PermissionDeniedError,
    UnauthenticatedError,
    WireError,
)
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, serialize_message
from opdispatch_wire.printable import printable_lines
from opdispatch_wire.v1 import execution_pb2

TOKEN_HEADER: Final = "x-opdispatch-token"
CALL_TIMEOUT: Final = 60.0
"""The timeout of a call, in seconds."""
MOST_BYTES: Final = 32 << 20
"""The largest request, including pictures, in bytes."""

_METHOD = "/opdispatch.v1.ExecutionService/Call"
_MOST_TEXT = 10_000
_MOST_SHOWN_BYTES = 16 << 20
_SMALLEST_PICTURE = 8

FindRunner = Callable[[Identity], CallRunner[Any]]


class OwnerSecret:
    """A secret in a file that only the daemon's user can read, for a daemon without tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._secret = secrets.token_urlsafe(32)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{self._secret}\n")

    def identify(self, token: str) -> Identity:
        """Return the daemon's user. Raises UnauthenticatedError for another token."""
        if hmac.compare_digest(token.encode(), self._secret.encode()):
            return OWNER
        raise UnauthenticatedError(
            "a call from the page needs the daemon's secret", hint=f"it is in {self.path}"
        )


class PageCalls:
    """Calls operators for pages. ``secret`` is for a daemon without tokens."""

    def __init__(
        self,
        reader: DaemonReader,
        authentication: Authentication,
        secret: OwnerSecret | None,
        find_runner: FindRunner,
    ) -> None:
        self._reader = reader
        self._authentication = authentication
        self._secret = secret
        self._find_runner = find_runner

    @property
    def route(self) -> Route:
        """The one route that takes calls."""
        return Route("/api/call", self._answer, methods=["POST"])

    async def _answer(self, request: Request) -> Response:
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("calls come from the page itself\n", 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("a call is application/json\n", 415)
        try:
            identity = await asyncio.to_thread(self._identify, request)
            body = await _body_of(request)
            if body is None:
                return PlainTextResponse(f"a call has at most {MOST_BYTES} bytes\n", 413)
            result = await asyncio.to_thread(self._call, body, identity)
        except UnauthenticatedError as error:
            return PlainTextResponse(f"{error}\n", 401)
        except PermissionDeniedError as error:
            return PlainTextResponse(f"{error}\n", 403)
        except DaemonUnavailableError:
            raise
        except OpdispatchError as error:
            return JSONResponse({"error": printable_lines(str(error))[:_MOST_TEXT]}, 422)
        return JSONResponse({"results": result})

    def _identify(self, request: Request) -> Identity:
        token = request.headers.get(TOKEN_HEADER, "")
        if self._secret is not None:
            return self._secret.identify(token)
        peer = f"ipv4:{request.client.host}:{request.client.port}" if request.client else ""
        return self._authentication.identify(_METHOD, peer, f"Bearer {token}")

    def _call(self, body: bytes, identity: Identity) -> list[dict[str, Any]]:
        operator, given = _read(body)
        schema = parse_schema(self._reader.view.describe_operator(operator).summary.schema)
        kwargs = arguments_of(schema, given)
        request = call_request(operator, (), kwargs)
        reply = self._reader.wait_for(self._run(request, identity), CALL_TIMEOUT + 1)
        result = result_of_reply(reply, (), kwargs)
        results = result if isinstance(result, tuple) else (result,)
        return [described(each) for each in results]

    async def _reply_to(
        self, request: execution_pb2.CallRequest, context: CallContext, identity: Identity
    ) -> execution_pb2.CallReply:
        """Return the reply. Raises UnauthenticatedError if the token is revoked meanwhile."""
        task, is_revoked = asyncio.current_task(), False
        assert task is not None, "it runs in a task of its own"

        def revoke() -> None:
            nonlocal is_revoked
            is_revoked = True
            task.cancel()

        self._authentication.revocation.begin(identity, revoke)
        try:
            return await self._find_runner(identity).call(request, context)
        except asyncio.CancelledError:
            if not is_revoked or task.uncancel():
                raise
            raise revoked_error(identity) from None
        finally:
            self._authentication.revocation.finish(revoke)

    async def _run(
        self, request: execution_pb2.CallRequest, identity: Identity
    ) -> execution_pb2.CallReply:
        CALLER.set(identity)
        tensors = CallTensors(results_of_any_size=False)
        context = CallContext(time.monotonic() + CALL_TIMEOUT).with_tensors(tensors)
        reply = await self._reply_to(request, context, identity)
        if not tensors.results:
            return reply
        payload = serialize_message(reply, MAX_MESSAGE_BYTES_HIGHEST, "the result of the call")
        parts = attach(payload, CALL_REPLY, tensors.results).parts
        return execution_pb2.CallReply.FromString(b"".join(parts))


async def _body_of(request: Request) -> bytes | None:
    """Return the body; None if it is too long, in which case reading stops."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    return bytes(body)


def _read(body: bytes) -> tuple[str, Mapping[str, Any]]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("$ is not valid JSON") from None
    operator = found.get("operator") if isinstance(found, dict) else None
    arguments = found.get("arguments") if isinstance(found, dict) else None
    if not isinstance(operator, str) or not isinstance(arguments, dict):
        raise WireError('$ is not like {"operator": "image::sobel", "arguments": {"x": [1, 2]}}')
    return operator, arguments


def arguments_of(schema: FunctionSchema, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name, with arrays where the schema has tensors.

    A number or a list of them becomes an array, and so does a picture: ``{"shape": [height, width,
    channels], "pixels": BASE64}``. Raises WireError for values that cannot be converted.
    """
    types = {each.name: str(each.type) for each in schema.arguments}
    return {name: _argument(types.get(name, ""), value, name) for name, value in given.items()}


def _argument(kind: str, value: Any, name: str) -> Any:
    if value is None or not kind.startswith("Tensor"):
        return value
    if kind.startswith(("Tensor[", "Tensor?[")) and isinstance(value, list):
        return [_array(each, f"{name}[{place}]") for place, each in enumerate(value)]
    return _array(value, name)


def _array(value: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        if isinstance(value, dict):
            data = base64.b64decode(value["pixels"], validate=True)
            return np.frombuffer(data, np.uint8).reshape([int(each) for each in value["shape"]])
        array = np.asarray(value)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise WireError(f"{name} is neither numbers nor a picture") from None
    if array.dtype.kind not in "biuf":
        raise WireError(f"{name} is neither numbers nor a picture")
    return array


def described(value: Any) -> dict[str, Any]:
    """Return a result as the page shows it: text, and pixels if it may be a picture."""
    if not isinstance(value, np.ndarray):
        return {"text": printable_lines(repr(value)[:_MOST_TEXT])}
    text = np.array2string(value, threshold=200, edgeitems=5)[:_MOST_TEXT]
    found = {"text": f"{value.dtype} {list(value.shape)}\n{text}"}
    pixels = _pixels(value)
    if pixels is not None and pixels.nbytes <= _MOST_SHOWN_BYTES:
        found["pixels"] = base64.b64encode(pixels.tobytes()).decode()
        found["shape"] = pixels.shape
    return found


def _pixels(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return an array as red, green, blue and opacity; None if it is unlike a picture.

    Numbers other than bytes are scaled from their minimum, black, to their maximum.
    """
    is_grey = value.ndim == 2
    if not is_grey and not (value.ndim == 3 and value.shape[2] in (1, 3, 4)):
        return None
    if min(value.shape[:2]) < _SMALLEST_PICTURE or value.dtype.kind not in "biuf":
        return None
    if value.dtype != np.uint8:
        numbers = np.nan_to_num(value.astype(np.float64))
        least, greatest = numbers.min(), numbers.max()
        value = ((numbers - least) * (255 / ((greatest - least) or 1))).astype(np.uint8)
    value = value.reshape(*value.shape[:2], -1)
    pixels = np.full((*value.shape[:2], 4), 255, np.uint8)
    pixels[..., : value.shape[2]] = value
    if value.shape[2] == 1:
        pixels[..., :3] = value
    return pixels
