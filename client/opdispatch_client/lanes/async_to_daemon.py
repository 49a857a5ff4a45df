"""An asyncio session's lane to its daemon: chosen at first, and replaced when it breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc.aio

from opdispatch_client.daemon_wait import DaemonWait
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.lane_choice import UNUSABLE, LaneKind, kinds_to_try
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.errors import DaemonUnavailableError, RefusedError, copy_of_error
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.async_stream import AsyncStream
from opdispatch_wire.lanes.awaited_replies import Reply
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.v1 import execution_pb2


class AsyncCallLane(Protocol):
    """A lane for calls, each of which has its own id. Errors are those of ``AsyncLane``."""

    @property
    def inline_bytes(self) -> int | None:
        """Size in bytes up to which tensors are inline; None if all have to be."""

    @property
    def max_message_bytes(self) -> int:
        """Longest request in bytes that the other side accepts."""

    @property
    def is_closed(self) -> bool:
        """Whether the lane has ended, so that calls on it fail."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""

    def call(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None = None
    ) -> Reply:
        """Send a call; return a future of its reply, which fails with LaneClosedError.

        ``tensors`` holds the large tensors of the request, and receives those of the reply.
        """

    def cancel(self, number: int) -> None:
        """Abandon the call with that id: its reply will be discarded."""

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""


class AsyncDaemonLane:
    """The lane of one session. For use in its event loop only.

    A broken lane is replaced once the daemon is back: see Note [A daemon that restarts].
    ``introduce`` repeats the handshake and returns the daemon's answer and the message limit.
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
        """The current lane, broken or not; None if each call is its own gRPC request."""
        self.name: LaneKind = "grpc"
        """Kind of the lane."""
        self._attempt: asyncio.Task[None] | None = None  # to open the lane again
        self._wait: DaemonWait | None = None  # for the daemon, during the attempt
        # Lanes to a stopping daemon, kept until the calls on them have ended.
        self._left: set[AsyncCallLane] = set()

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def max_message_bytes(self) -> int:
        """Longest request in bytes that the daemon accepts on the lane."""
        assert self.lane is not None
        return self.lane.max_message_bytes

    async def open(self, info: ServerInfo, limit: int) -> None:
        """Choose a lane for messages of at most ``limit`` bytes.

        Raises DaemonUnavailableError if the endpoint requires a kind that cannot be opened.
        """
        self.name, self.lane = await self._choose(info.lane, limit)

    async def get(self, deadline: float | None) -> AsyncCallLane | None:
        """Return ``lane``, or a new one if it is broken.

        All tasks that need a new lane wait for the same attempt, and get its error if it fails,
        such as DaemonUnavailableError. Raises TimeoutError at ``deadline``, by ``time.monotonic``,
        unless the attempt has met an error, which is raised instead.
        """
        lane = self.lane
        for left in [each for each in self._left if each is not lane and not each.calls_in_flight]:
            self._left.discard(left)
            left.close()
        if lane is None or self._is_closed or not (lane.is_closed or lane in self._left):
            return lane
        return await self._wait_for_another(deadline)

    def leave(self, lane: AsyncCallLane | None) -> None:
        """Use a new lane for the next calls, because the daemon at this one is stopping."""
        if lane is not None and not self._is_closed:
            self._left.add(lane)

    def close(self) -> None:
        """End all calls, and refuse new ones. Idempotent."""
        self._is_closed = True
        if not self._endpoint.is_of_this_process:
            return
        if self._attempt is not None:
            self._attempt.cancel()
        for lane in list(self._left):
            lane.close()
        if self.lane is not None:
            self.lane.close()

    async def _wait_for_another(self, deadline: float | None) -> AsyncCallLane | None:
        attempt = self._attempt
        if attempt is None:
            # In a separate task, so that no caller's deadline or cancellation ends it for others.
            attempt = self._attempt = asyncio.create_task(self._open_again())
            attempt.add_done_callback(self._forget_attempt)
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        await asyncio.wait((attempt,), timeout=left)
        if self._is_closed:
            raise self._endpoint.closed_error()
        if not attempt.done():
            failure = None if self._wait is None else self._wait.failure()
            raise failure or TimeoutError
        if attempt.cancelled():  # by code that cancels all tasks
            raise LaneClosedError("the attempt to open it again was cancelled", was_sent=False)
        if (error := attempt.exception()) is not None:
            raise copy_of_error(error)
        return self.lane

    async def _open_again(self) -> None:
        wait = self._wait = DaemonWait(self._endpoint.wait)
        while True:
            try:
                info, limit = await self._introduce()
                name, lane = await self._choose(info.lane, limit)
                break
            except (DaemonUnavailableError, RefusedError) as error:
                pause = wait.pause_after(error, is_repeatable=True)
            await asyncio.sleep(pause)
        broken = self.lane
        if broken is not None and not broken.calls_in_flight:
            broken.close()
        if not self._is_closed:
            self.name, self.lane = name, lane
        elif lane is not None:  # `introduce` swallowed the cancellation
            lane.close()

    def _forget_attempt(self, attempt: asyncio.Task[None]) -> None:
        self._attempt = None
        if not attempt.cancelled():
            attempt.exception()  # marks it as retrieved: all waiting tasks may have timed out

    async def _choose(self, path: str, limit: int) -> tuple[LaneKind, AsyncCallLane | None]:
        why = ""
        for kind in kinds_to_try(self._endpoint):
            try:
                return kind, await self._connect(kind, path, limit)
            except UNUSABLE[kind] as error:
                why = str(error)
        raise self._endpoint.no_lane_error(why)

    async def _connect(self, kind: LaneKind, path: str, limit: int) -> AsyncCallLane | None:
        if kind == "local":
            self._endpoint.check_local_lane(path)
            return await AsyncLane.connect(path, limit, call_limit=MAX_MESSAGE_BYTES_HIGHEST)
        if kind == "stream":
            return await AsyncStream.open(self._channel, limit)
        return None
