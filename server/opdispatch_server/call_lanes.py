"""The daemon's end of local lanes: calls of clients, and of kernels in interpreters."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from opdispatch_server.call_router import CallRouter
from opdispatch_server.calls_in_flight import CallsInFlight
from opdispatch_server.lane_listener import LaneListener
from opdispatch_wire import lane_messages
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.errors import WireError
from opdispatch_wire.frame_stream import FrameStream
from opdispatch_wire.frames import FrameKind
from opdispatch_wire.v1 import execution_pb2, lane_pb2

LOG = logging.getLogger("opdispatch.lane")


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
        self._limit = limit
        self._on_end = on_end
        self._calls = CallsInFlight(router, self._send_reply, self._set_full)
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

    def _take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        try:
            self._take_frame(kind, payload)
        except WireError as error:
            LOG.warning("a lane is closed: %s", error)
            self._stream.send(FrameKind.REFUSAL, lane_messages.refusal(error))
            raise

    def _take_frame(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        if self._patience is not None:
            told = lane_messages.read_hello((kind, payload)).max_message_bytes
            self._calls.reply_limit = min(
                told or MAX_MESSAGE_BYTES_HIGHEST, MAX_MESSAGE_BYTES_HIGHEST
            )
            self._patience.cancel()
            self._patience = None
            self._stream.send(FrameKind.WELCOME, lane_messages.welcome(self._limit))
        elif kind is FrameKind.CALL:
            request = execution_pb2.CallRequest()
            lane_messages.parsed(request, payload)
            self._calls.take(request)
        elif kind is FrameKind.CANCEL:
            cancel = lane_pb2.LaneCancel()
            lane_messages.parsed(cancel, payload)
            self._calls.cancel(cancel.id)
        else:
            raise WireError(f"a {kind.name} frame came where only calls can")

    def _send_reply(self, reply: bytes) -> None:
        self._stream.send(FrameKind.REPLY, reply)

    def _set_full(self, is_full: bool) -> None:
        if is_full:
            self._stream.pause()
        else:
            self._stream.resume()

    def _ended(self, error: Exception | None) -> None:
        self._tidy_up()

    def _tidy_up(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._calls.cancel_all()
        self._on_end(self)
