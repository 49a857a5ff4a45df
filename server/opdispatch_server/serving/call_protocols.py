"""Protocols between receivers of calls and the runners that execute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from opdispatch_server.call_context import CallContext
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2

Run = TypeVar("Run")
"""The type of runs that can end without a reply; None for a runner without such runs."""

Run_co = TypeVar("Run_co", covariant=True)

OnReply = Callable[[execution_pb2.CallReply | BaseException | Run], None]
"""A callback for the reply, the error, or the run that ended without one with its interpreter."""


class AbandonableCall(Protocol):
    """A call in progress that no task waits for."""

    def abandon(self) -> None:
        """Discard the reply when it arrives: the caller has cancelled. Idempotent."""


OnPlannedReply = Callable[[bytes | execution_pb2.CallReply | BaseException | Run], None]
"""Like ``OnReply``, but a plain reply is passed serialized."""


class PlannedCall(AbandonableCall, Protocol[Run_co]):
    """A call whose message has the constant bytes of an earlier one, and that has not begun yet."""

    @property
    def number(self) -> int:
        """The id that the caller assigned."""

    @property
    def request(self) -> execution_pb2.CallRequest:
        """The parsed message, for treating it like any other call."""

    @property
    def deadline(self) -> float | None:
        """When its caller stops waiting, by ``time.monotonic``; None: never."""

    def begin(self, on_reply: OnPlannedReply[Run_co], limit: int, tensors: CallTensors) -> bool:
        """Begin the call; a plain reply has at most ``limit`` bytes.

        ``tensors`` receive the large tensors of other replies. False means that nothing has begun
        and that it is to be treated like any other call.
        """


class CallRunner(Protocol[Run]):
    """A runner of calls: the daemon's router, or an interpreter itself."""

    def find_planned(self, payload: bytes) -> PlannedCall[Run] | None:
        """Return the call in a message, if there is a plan for calls like it."""

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[Run]
    ) -> AbandonableCall | None:
        """Begin a call that only waits for its kernel; ``on_reply`` is called when it ends.

        Return None, without beginning anything, for a call that needs ``call``.
        """

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: Run | None = None,
    ) -> execution_pb2.CallReply:
        """Run one call; ``broken`` is an earlier run, begun by ``begin``, that had no reply.

        Raises OpdispatchError.
        """
