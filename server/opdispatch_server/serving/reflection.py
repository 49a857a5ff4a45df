"""The standard reflection service, which lists a server's services and their messages.

It needs the descriptors of all descriptors, a megabyte that hardly any daemon is asked for: its
package is imported at the first request.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

import grpc

from opdispatch_server.serving.grpc_services import GeneratedHandlers

REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
"""The full name of the service."""


class ReflectionHandler(grpc.GenericRpcHandler):
    """Serves reflection about the services ``names``, and about itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = (*names, REFLECTION)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method of this service; None for a method of another one."""
        service, _, method = handler_call_details.method.removeprefix("/").partition("/")
        return self._methods.get(method) if service == REFLECTION else None

    @functools.cached_property
    def _methods(self) -> dict[str, Any]:
        from grpc_reflection.v1alpha import (  # type: ignore[import-untyped]
            reflection,
            reflection_pb2_grpc,
        )

        handlers = GeneratedHandlers()
        servicer = reflection.aio.ReflectionServicer(self._names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, handlers)
        return handlers.by_service[REFLECTION]
