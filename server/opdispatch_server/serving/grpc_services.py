"""Registration of gRPC services whose malformed messages are answered with our own errors.

gRPC answers bytes that do not parse with UNKNOWN, and logs a traceback for each. Replies may be
messages, or serialized already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from opdispatch_wire.errors import WireError
from opdispatch_wire.protobuf_fields import FieldLimit, read_fields
from opdispatch_wire.received_call import read_call
from opdispatch_wire.v1 import (
    execution_pb2_grpc,
    interpreter_pb2,
    interpreter_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    remote_pb2,
)

MAX_REQUEST_BYTES = 256 * 1024
"""The limit in bytes of requests other than calls: names, patterns, requirements."""

_MAX_FIELDS = 10_000

Parse = Callable[[bytes], Any]


class Malformed(NamedTuple):
    """The placeholder for a message that does not parse."""

    reason: str

    def error(self) -> WireError:
        """Return the error for its sender."""
        return WireError(f"$ is not the message that this method takes: {self.reason}")


def add_execution_service(server: grpc.aio.Server, servicer: object) -> None:
    """Add ``ExecutionService``, implemented by ``servicer``.

    It receives calls as ReceivedCall, and those of streams as bytes.
    """
    add = execution_pb2_grpc.add_ExecutionServiceServicer_to_server
    parsers: dict[str, Parse | None] = {
        "Call": read_call,
        "CallStream": None,
        "HoldValues": small(remote_pb2.HoldValuesRequest.FromString),
    }
    add_service(server, add, servicer, lambda method, parse: parsers.get(method, parse))


def add_registry_service(server: grpc.aio.Server, servicer: object) -> None:
    """Add ``RegistryService`` to the server: its requests are small, except uploads."""
    add = registry_pb2_grpc.add_RegistryServiceServicer_to_server
    large = {
        "LoadLibrary": [registry_pb2.LoadLibraryRequest.CONTENT_FIELD_NUMBER],
        "LoadLibraryWithProgress": [registry_pb2.LoadLibraryRequest.CONTENT_FIELD_NUMBER],
        "UploadLibrary": [registry_pb2.UploadLibraryRequest.CHUNK_FIELD_NUMBER],
    }

    def parse_small(method: str, parse: Parse) -> Parse:
        return small(parse, large.get(method, []))

    add_service(server, add, servicer, parse_small)


def add_interpreter_service(server: grpc.aio.Server, servicer: object) -> None:
    """Add ``InterpreterService`` to the server: any process may say hello."""
    add = interpreter_pb2_grpc.add_InterpreterServiceServicer_to_server
    fields = interpreter_pb2.InterpreterMessage.DESCRIPTOR.fields_by_name.values()
    answers = [each.number for each in fields if each.name != "hello"]
    add_service(server, add, servicer, lambda method, parse: small(parse, answers))


def small(parse: Parse, large: Collection[int] = ()) -> Parse:
    """Return ``parse`` with a limit of MAX_REQUEST_BYTES, not counting fields of ``large`` numbers.

    So requests are cheap to process, whatever they contain.
    """

    def parse_small(data: bytes) -> Any:
        size = len(data)
        if large and size > MAX_REQUEST_BYTES:
            limit = FieldLimit(_MAX_FIELDS, WireError(f"$ has more than {_MAX_FIELDS} parts"))
            fields = read_fields(memoryview(data), 0, size, limit=limit)
            size -= sum(each.end - each.start for each in fields if each.number in large)
        if size > MAX_REQUEST_BYTES:
            raise WireError(f"$ has {size} bytes; the limit is {MAX_REQUEST_BYTES}")
        return parse(data)

    return parse_small


def add_service(
    server: grpc.aio.Server,
    add_to_server: Callable[[Any, Any], None],
    servicer: object,
    parse: Callable[[str, Parse], Parse | None] = lambda method, parse: parse,
) -> None:
    """Do what the generated function ``add_to_server`` does; see Malformed.

    ``parse`` takes the name of a method and its parser and returns the parser to use; with None,
    requests and replies are bytes. Methods that ``servicer`` only inherits from the generated class
    are left out: gRPC answers unknown methods with UNIMPLEMENTED, too, but without logging a
    traceback.
    """
    generated = add_to_server.__module__
    handlers = GeneratedHandlers()
    add_to_server(servicer, handlers)
    for service, methods in handlers.by_service.items():
        tolerant = {
            name: _tolerant(handler, parse(name, handler.request_deserializer))
            for name, handler in methods.items()
            if getattr(servicer, name).__module__ != generated
        }
        generic = grpc.method_handlers_generic_handler(service, tolerant)
        server.add_generic_rpc_handlers((generic,))


class GeneratedHandlers:
    """A stand-in for a server that captures the generated handlers."""

    def __init__(self) -> None:
        self.by_service: dict[str, dict[str, Any]] = {}

    def add_registered_method_handlers(self, service: str, methods: dict[str, Any]) -> None:
        """Store the handlers of a service."""
        self.by_service[service] = methods

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Store the same handlers again."""


def _tolerant(handler: Any, parse: Parse | None) -> Any:
    if parse is None:
        return handler._replace(request_deserializer=None, response_serializer=None)
    serialize = handler.response_serializer

    def serialize_once(reply: Any) -> bytes:
        data: bytes = reply if isinstance(reply, bytes) else serialize(reply)
        return data

    return handler._replace(
        request_deserializer=_explaining(parse), response_serializer=serialize_once
    )


def _explaining(parse: Parse) -> Parse:
    def parse_or_explain(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError as error:
            return Malformed(str(error))
        except WireError as error:
            return Malformed(error.message)

    return parse_or_explain
