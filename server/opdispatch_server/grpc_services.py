"""Adding services to a gRPC server so that malformed messages reach the service's own errors.

gRPC answers bytes that do not parse with UNKNOWN, and logs a traceback for each. Replies may be
messages, or bytes already.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError
from opdispatch_wire.received_call import read_call
from opdispatch_wire.v1 import execution_pb2_grpc

Parse = Callable[[bytes], Any]


class Malformed(NamedTuple):
    """What a servicer gets in the place of a message that does not parse."""

    reason: str

    def error(self) -> WireError:
        """What its sender is told."""
        return WireError(f"$ is not the message that this method takes: {self.reason}")


def add_execution_service(server: grpc.aio.Server, servicer: object) -> None:
    """Has ``servicer`` serve ``ExecutionService``; calls come to it as ReceivedCall."""
    add = execution_pb2_grpc.add_ExecutionServiceServicer_to_server
    # What is large comes in chunks on a stream, and beside those nothing should be.
    in_streams = functools.partial(read_call, detaches=False)
    add_service(server, add, servicer, {"Call": read_call, "CallStream": in_streams})


def add_service(
    server: grpc.aio.Server,
    add_to_server: Callable[[Any, Any], None],
    servicer: object,
    parse: Mapping[str, Parse] | None = None,
) -> None:
    """Does what the generated function ``add_to_server`` does; see Malformed.

    Requests of methods that are in ``parse`` are what that makes of them.
    """
    handlers = _Handlers()
    add_to_server(servicer, handlers)
    for service, methods in handlers.by_service.items():
        tolerant = {
            name: _tolerant(handler, (parse or {}).get(name)) for name, handler in methods.items()
        }
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


def _tolerant(handler: Any, parse: Parse | None) -> Any:
    serialize = handler.response_serializer
    parse = parse or handler.request_deserializer

    def parse_or_explain(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return Malformed(str(error))
        except WireError as error:
            return Malformed(error.message)

    def serialize_once(reply: Any) -> bytes:
        data: bytes = reply if isinstance(reply, bytes) else serialize(reply)
        return data

    return handler._replace(
        request_deserializer=parse_or_explain, response_serializer=serialize_once
    )
