"""An asyncio session's lane to its daemon: the choice of it, and a new one when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.async_lane import AsyncLane
from opdispatch_wire.async_stream import AsyncStream
from opdispatch_wire.awaited_replies import Reply
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2


class AsyncCallLane(Protocol):
    """A way for calls, each with an id of its own; see ``AsyncLane`` for what is raised."""

    @property
    def inline_bytes(self) -> int | None:
        """How long tensors may be in a message; None: the other side takes none beside it."""

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""

    def call(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None = None
    ) -> Reply:
        """Sends a call; the future has the reply, or LaneClosedError.

        The large tensors of both are in ``tensors``.
        """

    def cancel(self, number: int) -> None:
        """Nobody waits any more for the reply of that id."""

    def close(self) -> None:
        """Ends all calls with LaneClosedError. Idempotent."""


class AsyncDaemonLane:
    """The lane of one session. Belongs to the event loop.

    ``introduce`` asks the daemon again who it is, and returns that and the message limit.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        channel: grpc.aio.Channel,
        introduce: Callable[[], Awaitable[tuple[ServerInfo, int]]],
    ) -> None:
        self._endpoint = endpoint
        self._channel = channel
        self._introduce = introduce
        self._is_closed = False
        self.lane: AsyncCallLane | None = None
        """The one that there is, broken or not; None: each call is a gRPC request."""
        self.name = "grpc"
        """What kind of lane it is."""
        self._opening = asyncio.Lock()  # a lane that broke is opened again by one task

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    async def open(self, info: ServerInfo, limit: int) -> None:
        """Chooses a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if there is none of the kind that the endpoint insists on.
        """
        self.name, self.lane = await self._choose(info.lane, limit)

    async def get(self) -> AsyncCallLane | None:
        """``lane``, opened again if it broke. Raises DaemonUnavailableError."""
        lane = self.lane
        if lane is None or not lane.is_closed or self._is_closed:
            return lane
        async with self._opening:
            if self.lane is lane:
                await self.open(*await self._introduce())
            return self.lane

    def close(self) -> None:
        """Ends all calls; no others can be made. Idempotent."""
        self._is_closed = True
        if self.lane is not None and self._endpoint.is_of_this_process:
            self.lane.close()

    async def _choose(self, path: str, limit: int) -> tuple[str, AsyncCallLane | None]:
        endpoint, wanted = self._endpoint, self._endpoint.lane
        if wanted in ("auto", "local"):
            why = endpoint.why_no_lane(path)
            if not why:
                try:
                    lane = await AsyncLane.connect(
                        path, limit, call_limit=MAX_MESSAGE_BYTES_HIGHEST
                    )
                    return "local", lane
                except (OSError, OpdispatchError) as error:
                    why = str(error)
            if wanted == "local":
                raise endpoint.no_lane_error(why)
        if wanted in ("auto", "stream"):
            try:
                return "stream", await AsyncStream.open(self._channel, limit)
            except LaneClosedError as error:
                if wanted == "stream":
                    raise endpoint.no_stream_error(str(error)) from None
        return "grpc", None
