"""The daemon's end of local lanes: calls of clients, and of kernels in interpreters."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import grpc.aio

from opdispatch.errors import OpdispatchError
from opdispatch_server.call_context import CallContext
from opdispatch_server.call_router import CallRouter
from opdispatch_server.lane_listener import LaneListener
from opdispatch_server.status_answers import status_of_rpc_error
from opdispatch_wire import lane_messages
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, serialize_message
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.frame_stream import FrameStream
from opdispatch_wire.frames import FrameKind
from opdispatch_wire.status import status_from_error
from opdispatch_wire.v1 import execution_pb2, lane_pb2

LOG = logging.getLogger("opdispatch.lane")

CALLS_IN_FLIGHT = 1024
"""How many calls of one connection are under way before no more are read."""


class CallLanes:
    """All of them. Belongs to the event loop."""

    def __init__(self, router: CallRouter) -> None:
        self._router = router
        self._listeners: list[LaneListener] = []
        self._lanes: set[CallLane] = set()

    def listen(self, path: str, limit: int) -> None:
        """Takes calls of at most ``limit`` bytes at ``path``. Raises OSError."""

        def add(connection: socket.socket) -> None:
            self._lanes.add(CallLane(connection, self._router, limit, self._lanes.discard))

        self._listeners.append(LaneListener(path, add))

    def close(self) -> None:
        """Ends every lane. Idempotent."""
        for listener in self._listeners:
            listener.close()
        for lane in list(self._lanes):
            lane.close()


class CallLane:
    """One connection on which calls come. Belongs to the event loop."""

    def __init__(
        self,
        connection: socket.socket,
        router: CallRouter,
        limit: int,
        on_end: Callable[[CallLane], None],
    ) -> None:
        self._router = router
        self._limit = limit
        self._reply_limit = MAX_MESSAGE_BYTES_HIGHEST
        self._on_end = on_end
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_paused = False
        self._stream = FrameStream(connection, limit, self._take, self._ended)
        loop = asyncio.get_running_loop()
        # Until it has said hello.
        self._patience: asyncio.TimerHandle | None = loop.call_later(
            lane_messages.HANDSHAKE_TIMEOUT, self.close
        )

    def close(self) -> None:
        """Ends the lane; nobody waits for its calls any more. Idempotent."""
        self._stream.close()
        self._tidy_up()

    def _take(self, kind: FrameKind, payload: bytes | bytearray) -> None:
        try:
            self._take_frame(kind, payload)
        except WireError as error:
            LOG.warning("a lane is closed: %s", error)
            self._stream.send(FrameKind.REFUSAL, lane_messages.refusal(error))
            raise

    def _take_frame(self, kind: FrameKind, payload: bytes | bytearray) -> None:
        if self._patience is not None:
            told = lane_messages.read_hello((kind, payload))
            self._reply_limit = min(told or MAX_MESSAGE_BYTES_HIGHEST, MAX_MESSAGE_BYTES_HIGHEST)
            self._patience.cancel()
            self._patience = None
            self._stream.send(FrameKind.WELCOME, lane_messages.welcome(self._limit))
        elif kind is FrameKind.CALL:
            request = execution_pb2.CallRequest()
            lane_messages.parsed(request, payload)
            self._begin(request)
        elif kind is FrameKind.CANCEL:
            cancel = lane_pb2.LaneCancel()
            lane_messages.parsed(cancel, payload)
            if task := self._tasks.get(cancel.id):
                task.cancel()
        else:
            raise WireError(f"a {kind.name} frame came where only calls can")

    def _begin(self, request: execution_pb2.CallRequest) -> None:
        number = request.id
        if number in self._tasks:
            raise WireError(f"$.id is {number}, and the call of that id is still under way")
        self._tasks[number] = asyncio.create_task(self._answer(request))
        if len(self._tasks) >= CALLS_IN_FLIGHT and not self._is_paused:
            self._is_paused = True
            self._stream.pause()

    async def _answer(self, request: execution_pb2.CallRequest) -> None:
        number = request.id
        try:
            reply = await self._call(request)
            if reply is not None:
                self._stream.send(FrameKind.REPLY, self._serialize(number, reply))
        finally:
            del self._tasks[number]
            if self._is_paused and len(self._tasks) < CALLS_IN_FLIGHT // 2:
                self._is_paused = False
                self._stream.resume()

    async def _call(self, request: execution_pb2.CallRequest) -> execution_pb2.CallReply | None:
        """The reply; None if nobody waits for it any more."""
        try:
            return await self._router.call(request, CallContext.of_request(request))
        except asyncio.CancelledError:
            return None
        except grpc.aio.AioRpcError as error:
            return execution_pb2.CallReply(error=status_of_rpc_error(error))
        except Exception as error:
            if not isinstance(error, OpdispatchError):
                LOG.error("the call of %s failed", request.operator, exc_info=error)
            return execution_pb2.CallReply(error=status_from_error(error))

    def _serialize(self, number: int, reply: execution_pb2.CallReply) -> bytes:
        reply.id = number
        try:
            return serialize_message(reply, self._reply_limit, "the result of the call")
        except MessageTooLargeError as error:
            error_reply = execution_pb2.CallReply(id=number, error=status_from_error(error))
            return error_reply.SerializeToString()

    def _ended(self, error: Exception | None) -> None:
        self._tidy_up()

    def _tidy_up(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        for task in list(self._tasks.values()):
            task.cancel()
        self._on_end(self)
