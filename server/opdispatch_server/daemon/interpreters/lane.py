"""The way that the daemon's calls take to one interpreter."""

from __future__ import annotations

import asyncio
from typing import Protocol

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.awaited_replies import OnReply, Reply
from opdispatch_wire.v1 import execution_pb2


class InterpreterLane(Protocol):
    """A local lane, or a stream; see ``AsyncLane`` for what its methods raise."""

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""

    @property
    def ended(self) -> asyncio.Future[Exception | None]:
        """Done when it has ended without ``close``: the error, or None."""

    def call(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None = None
    ) -> Reply:
        """Send a call; the future has the reply, or LaneClosedError.

        The large tensors of both are in ``tensors``.
        """

    def call_then(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        on_reply: OnReply,
        tensors: CallTensors | None = None,
    ) -> None:
        """Send a call; ``on_reply`` is called as soon as the reply is read."""

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
