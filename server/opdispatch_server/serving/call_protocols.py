"""The Protocols between those who take calls and those who run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from opdispatch_server.call_context import CallContext
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.v1 import execution_pb2

Run = TypeVar("Run")
"""The runs of a runner that can end without a reply; None for one whose runs cannot."""

Run_co = TypeVar("Run_co", covariant=True)

OnReply = Callable[[execution_pb2.CallReply | BaseException | Run], None]
"""Called with the reply, the error, or the run that has had none, as its interpreter is gone."""


class AbandonableCall(Protocol):
    """A call that has begun and that no task waits for."""

    def abandon(self) -> None:
        """Discard the reply when it comes: the caller has given up. Idempotent."""


OnPlannedReply = Callable[[bytes | execution_pb2.CallReply | BaseException | Run], None]
"""Called as ``OnReply``; with the bytes of the reply, if it is plain."""


class PlannedCall(AbandonableCall, Protocol[Run_co]):
    """A call whose message has the constant bytes of one before it, and has not begun yet."""

    @property
    def number(self) -> int:
        """The id that its caller has given it."""

    @property
    def request(self) -> execution_pb2.CallRequest:
        """The message, to go on with it as with any other."""

    @property
    def deadline(self) -> float | None:
        """When its caller waits no more, by ``time.monotonic``; None: never."""

    def begin(self, on_reply: OnPlannedReply[Run_co], limit: int, tensors: CallTensors) -> bool:
        """Begin it; a plain reply has at most ``limit`` bytes, and ``tensors`` get those of others.

        False: it is to be taken as any other call, and nothing has begun.
        """


class CallRunner(Protocol[Run]):
    """The runner of calls: the daemon's router, or an interpreter itself."""

    def find_planned(self, payload: bytes) -> PlannedCall[Run] | None:
        """Return the call in a message, if others like it are planned."""

    def begin(
        self, request: execution_pb2.CallRequest, context: CallContext, on_reply: OnReply[Run]
    ) -> AbandonableCall | None:
        """Begin a call that has to wait for nothing but its kernel.

        None: it is one for ``call``, and nothing has begun.
        """

    async def call(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        broken: Run | None = None,
    ) -> execution_pb2.CallReply:
        """Run one call; ``broken`` is a run of it that ``begin`` began and that had no reply.

        Raises OpdispatchError.
        """
