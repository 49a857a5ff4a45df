"""Adding services to a gRPC server so that malformed messages reach the service's own errors.

gRPC answers bytes that do not parse with UNKNOWN, and logs a traceback for each. Replies may be
messages, or bytes already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError


class Malformed(NamedTuple):
    """What a servicer gets in the place of a message that does not parse."""

    reason: str

    def error(self) -> WireError:
        """What its sender is told."""
        return WireError(f"$ is not the message that this method takes: {self.reason}")


def add_service(
    server: grpc.aio.Server, add_to_server: Callable[[Any, Any], None], servicer: object
) -> None:
    """Does what the generated function ``add_to_server`` does; see Malformed."""
    handlers = _Handlers()
    add_to_server(servicer, handlers)
    for service, methods in handlers.by_service.items():
        tolerant = {name: _tolerant(handler) for name, handler in methods.items()}
        generic = grpc.method_handlers_generic_handler(service, tolerant)
        server.add_generic_rpc_handlers((generic,))


class _Handlers:
    """Takes a server's place to get hold of the generated handlers."""

    def __init__(self) -> None:
        self.by_service: dict[str, dict[str, Any]] = {}

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        self.by_service[service] = methods

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The same ones again."""


def _tolerant(handler: Any) -> Any:
    parse, serialize = handler.request_deserializer, handler.response_serializer

    def parse_or_explain(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return Malformed(str(error))

    def serialize_once(reply: Any) -> bytes:
        data: bytes = reply if isinstance(reply, bytes) else serialize(reply)
        return data

    return handler._replace(
        request_deserializer=parse_or_explain, response_serializer=serialize_once
    )
