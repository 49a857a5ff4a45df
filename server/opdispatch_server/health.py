"""The standard health service, computed from what the daemon can really do.

""                               READY if there is an interpreter, where some were asked for
opdispatch.v1.ExecutionService   the same
opdispatch.v1.RegistryService    serving until the daemon stops
library/NAME                     serving while NAME is active; unknown once it is unloaded
"""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import (  # type: ignore[import-untyped]
    health,
    health_pb2,
    health_pb2_grpc,
)

EXECUTION = "opdispatch.v1.ExecutionService"
REGISTRY = "opdispatch.v1.RegistryService"
INTERPRETER = "opdispatch.v1.InterpreterService"
HEALTH = health.SERVICE_NAME

_STATUS = health_pb2.HealthCheckResponse


class HealthBoard(health.aio.HealthServicer):  # type: ignore[misc]  # the package has no types
    """Who is told: whoever checks or watches. Belongs to the event loop."""

    def __init__(self, *, interpreters_expected: bool) -> None:
        super().__init__()
        self._expected = interpreters_expected

    def add_to(self, server: grpc.aio.Server) -> None:
        """Makes ``server`` answer health requests."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    async def interpreters(self, ready: int) -> None:
        """Notes how many interpreters are ready."""
        serving = ready > 0 or not self._expected
        for service in ("", EXECUTION):
            await self._note(service, serving)
        await self._note(REGISTRY, True)

    async def library(self, name: str, *, serving: bool | None) -> None:
        """Notes whether a library serves calls; None: it is gone."""
        await self._note(f"library/{name}", serving)

    async def drain(self) -> None:
        """From now on nothing is serving."""
        await self.enter_graceful_shutdown()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """NOT_FOUND for a name that nobody has, or has any more."""
        response = await super().Check(request, context)
        if response is not None and response.status == _STATUS.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return response

    async def _note(self, service: str, serving: bool | None) -> None:
        if serving is None:
            status = _STATUS.SERVICE_UNKNOWN
        else:
            status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
        await self.set(service, status)
