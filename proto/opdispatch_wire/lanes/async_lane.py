"""The calling side of a local lane in an event loop."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import Callable

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes import lane_messages, lane_socket
from opdispatch_wire.lanes.awaited_calls import AwaitedCalls
from opdispatch_wire.lanes.awaited_replies import AwaitedReplies, Reply, fail
from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.lanes.frame_stream import FrameStream
from opdispatch_wire.lanes.lane_memory import MEMORY_FRAMES, CallerLaneMemory, Put
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.lane_tensors import TensorLane
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.v1 import execution_pb2, lane_pb2


class AsyncLane(AwaitedCalls, TensorLane):
    """One lane, with any number of calls in flight. For use in its event loop only."""

    def __init__(self, connection: socket.socket, limit: int, call_limit: int = 0) -> None:
        self._loop = asyncio.get_running_loop()
        self.number = 0
        """The other side's number for this connection."""
        self._replies = AwaitedReplies("the lane is closed")
        super().__init__(limit)
        self._welcome: asyncio.Future[lane_pb2.LaneWelcome] | None = self._loop.create_future()
        self.ended: asyncio.Future[Exception | None] = self._loop.create_future()
        """Done when the lane has ended without ``close``: the error, or None."""
        self._stream = FrameStream(
            connection, max(limit, call_limit), self._take, self._end, always_reads=True
        )
        self._send_call = functools.partial(self._stream.send, FrameKind.CALL)

    @classmethod
    async def connect(
        cls,
        path: str,
        limit: int,
        share: Callable[[Put], CallerLaneMemory] | None = None,
        *,
        call_limit: int = 0,
        patience: float = lane_messages.HANDSHAKE_TIMEOUT,
    ) -> AsyncLane:
        """Connect to the socket at ``path`` and perform the handshake, within ``patience`` seconds.

        Accept replies of at most ``limit`` bytes, or ``call_limit`` including large tensors. With
        ``share``, memory is shared if the other side supports it.

        Raises OSError, LaneClosedError, the error of a REFUSAL, and WireError.
        """
        deadline = asyncio.get_running_loop().time() + patience
        lane = cls(await _connect(path, patience), limit, call_limit)
        assert lane._welcome is not None
        try:
            hello = lane_messages.hello(
                limit, max_call_bytes=call_limit, shares_memory=share is not None
            )
            lane._stream.send(FrameKind.HELLO, hello)
            async with asyncio.timeout_at(deadline):
                welcome = await lane._welcome
                lane._tensors.welcomed(limit, welcome)
                lane.number = welcome.lane
                if share is not None and welcome.shares_memory:
                    memory = lane.memory = lane._tensors.memory = share(lane._stream.send)
                    lane._stream.descriptors = memory.descriptors
        except BaseException:
            lane.close()
            raise
        lane._welcome = None
        return lane

    @property
    def is_closed(self) -> bool:
        """Whether the lane has ended, so that calls on it fail."""
        return self._stream.is_closed

    def call(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        tensors: CallTensors | None = None,
        *,
        memory: CallerMemory | None = None,
    ) -> Reply:
        """Send a call under a new id; the future gets its reply, or fails with LaneClosedError.

        Its tensors may be in ``memory``, which the caller may reuse once it has the reply, or the
        large ones in ``tensors``, from which they are sent without a copy, and which receives those
        of the reply. Raises LaneClosedError, MessageTooLargeError, which names the call ``what``,
        and WireError for a request that refers to other tensors than these.
        """
        payload = self._begin(request, what, tensors, memory)
        future = self._replies.expect(request.id)
        self._send_call(payload)
        return future

    def cancel(self, number: int) -> None:
        """Cancel a call, whose reply will be discarded.

        Unsent parts of the request are copied: the caller may change its arrays from now on.
        """
        self._tensors.forget(number)
        if self._replies.forget(number):
            cancel = lane_pb2.LaneCancel(id=number)
            self._stream.send(FrameKind.CANCEL, cancel.SerializeToString())
            self._stream.detach()

    def close(self) -> None:
        """End the lane; calls that wait end with LaneClosedError. Idempotent."""
        self._stream.close()
        self._fail_all(None)

    def _begin(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        tensors: CallTensors | None,
        memory: CallerMemory | None = None,
    ) -> FramePayload:
        """Assign the call an id and return the frame to send."""
        request.id = self._replies.next_number()
        return self._tensors.begin(request, what, memory, tensors)

    def _take(self, kind: FrameKind, payload: bytes | memoryview) -> None:
        if kind is FrameKind.REPLY:
            if self._replies.take_plain(payload):
                return
            reply = self._tensors.read_reply(payload)
            held = self.memory.replied(reply.id) if self.memory is not None else None
            if not self._replies.take(reply) and self.memory is not None:
                self.memory.discard(reply, held)
        elif self.memory is not None and kind in MEMORY_FRAMES:
            try:
                self.memory.take(kind, payload)
            except LaneClosedError as error:
                raise WireError(str(error)) from error
        elif self._welcome is not None and not self._welcome.done():
            self._welcome.set_result(lane_messages.read_welcome((kind, payload)))
        elif kind is FrameKind.REFUSAL:
            raise WireError(str(lane_messages.refusal_error(payload)))
        else:
            raise WireError(f"received a {kind.name} frame; expected REPLY")

    def _end(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
        self._fail_all(error)

    def _fail_all(self, cause: Exception | None) -> None:
        self._tensors.end()
        why = str(cause) if cause else "the other side closed the connection"
        if self._welcome is not None:
            fail(self._welcome, why, cause)
        self._replies.fail_all(why, cause)


async def _connect(path: str, patience: float) -> socket.socket:
    """Call ``lane_socket.connect`` in a thread, within ``patience`` seconds.

    Waiting for a thread counts, too, as all may be busy. If this gives up first, the thread closes
    the connection that it gets.
    """
    mutex, is_wanted = threading.Lock(), True
    connection: socket.socket | None = None

    def connect() -> None:
        nonlocal connection
        found = lane_socket.connect(path, patience)
        with mutex:
            if is_wanted:
                connection = found
                return
        found.close()

    try:
        async with asyncio.timeout(patience):
            await asyncio.get_running_loop().run_in_executor(None, connect)
    except BaseException:
        with mutex:
            is_wanted = False
        if connection is not None:
            connection.close()
        raise
    assert connection is not None
    return connection
