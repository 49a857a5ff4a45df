"""The calls allowed to an interpreter that joined with a token: those made by its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from opdispatch_server.access.identity import Identity, how_to_get
from opdispatch_server.access.roles import Role
from opdispatch_server.call_context import CallContext
from opdispatch_server.serving.call_protocols import AbandonableCall, CallRunner, OnReply, Run
from opdispatch_wire.errors import PermissionDeniedError
from opdispatch_wire.v1 import execution_pb2


class JoinedInterpreterCalls(Generic[Run]):
    """Runs calls of an identity with the role worker only if a kernel made them.

    ``is_running`` returns whether a kernel is running, by the number of its run. Interpreters
    receive that number, which cannot be guessed, with the call that they run.
    """

    def __init__(
        self, identity: Identity, runner: CallRunner[Run], is_running: Callable[[int], bool]
    ) -> None:
        self._identity = identity
        self._runner = runner
        self._is_running = is_running

    def find_planned(self, payload: bytes) -> None:
        """Return None: each call has to be checked."""

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[Run]
    ) -> AbandonableCall | None:
        """Begin a call as the runner does; also None if no kernel made it: see ``call``."""
        if not self._is_running(context.run):
            return None
        return self._runner.begin(request, context, on_reply)

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: Run | None = None,
    ) -> execution_pb2.CallReply:
        """Run a call as the runner does. Raises PermissionDeniedError if no kernel has made it."""
        if not self._is_running(context.run):
            raise PermissionDeniedError(
                f"{self._identity.name} has the role {self._identity.role}, which permits only "
                f"calls made by kernels; other calls need the role {Role.CALL}",
                hint=how_to_get(Role.CALL),
                role=self._identity.role.value,
                needed=Role.CALL.value,
            )
        return await self._runner.call(request, context, broken)
