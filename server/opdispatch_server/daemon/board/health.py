"""The standard ``grpc.health.v1`` service, derived from the state of the daemon.

""                               serving if an interpreter is live, where some were asked for,
                                 and the start has brought back the libraries of the journal
opdispatch.v1.ExecutionService   the same
opdispatch.v1.RegistryService    serving until the daemon stops
library/NAME                     serving while NAME is active; unknown once it is unloaded
interpreter/NAME                 serving while it is live; unknown for one that is not coming back
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
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

# A watcher that does not read may miss the states between the queued ones.
CHANGES_KEPT = 64

_STATUS = health_pb2.HealthCheckResponse


class HealthBoard(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the package has no types
    """The health states, and the clients that check or watch them. For the event loop only.

    Setting a state never waits for watchers: each has its own queue, so that a watcher that does
    not read blocks neither the daemon nor other watchers, and does not miss a short outage.
    """

    def __init__(self, *, interpreters_expected: bool) -> None:
        self._expected = interpreters_expected
        self._live = 0
        self._restoring = False
        self._status: dict[str, int] = {}
        self._watchers: defaultdict[str, set[asyncio.Queue[int]]] = defaultdict(set)
        self._draining = False

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the health service with ``server``."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)

    @property
    def is_serving(self) -> bool:
        """Whether the daemon serves calls."""
        return bool(self._status.get("") == _STATUS.SERVING)

    async def interpreters(self, ready: int) -> None:
        """Set how many interpreters are live."""
        self._live = ready
        self._note_readiness()

    async def restoring(self, restoring: bool) -> None:
        """Set whether libraries of the journal are still being loaded: until then, not ready."""
        self._restoring = restoring
        self._note_readiness()

    async def library(self, name: str, *, serving: bool | None) -> None:
        """Set whether a library serves calls; None means that it is unloaded."""
        self._note(f"library/{name}", serving)

    async def interpreter(self, name: str, *, serving: bool | None) -> None:
        """Set whether an interpreter is live; None means that it is gone for good."""
        self._note(f"interpreter/{name}", serving)

    async def drain(self) -> None:
        """Report nothing as serving from now on."""
        for service in list(self._status):
            self._note(service, False)
        self._draining = True

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the current status; NOT_FOUND for an unknown name."""
        status = self._status.get(request.service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)  # leaves no traceback: see end_with
            return None
        return _STATUS(status=status)

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """Stream the current status and every change, until the client cancels."""
        queue: asyncio.Queue[int] = asyncio.Queue(CHANGES_KEPT)
        watchers = self._watchers[request.service]
        watchers.add(queue)
        try:
            status = self._status.get(request.service, _STATUS.SERVICE_UNKNOWN)
            while True:
                await context.write(_STATUS(status=status))
                status = await queue.get()
        finally:
            watchers.discard(queue)
            if not watchers:
                self._watchers.pop(request.service, None)

    def _note_readiness(self) -> None:
        serving = (self._live > 0 or not self._expected) and not self._restoring
        for service in ("", EXECUTION):
            self._note(service, serving)
        self._note(REGISTRY, True)

    def _note(self, service: str, serving: bool | None) -> None:
        before = self._status.get(service, _STATUS.SERVICE_UNKNOWN)
        if serving is None:
            status = _STATUS.SERVICE_UNKNOWN
        else:
            status = _STATUS.SERVING if serving else _STATUS.NOT_SERVING
        if self._draining or status == before:
            return
        if serving is None:
            self._status.pop(service, None)
        else:
            self._status[service] = status
        for queue in self._watchers.get(service, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(status)
