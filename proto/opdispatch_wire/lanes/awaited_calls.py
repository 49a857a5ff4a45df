"""Calls whose replies are awaited in an event loop: the same on a local lane and on a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.awaited_replies import AwaitedReplies, OnReply
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.v1 import execution_pb2


class AwaitedCalls:
    """Sends calls, and hands their replies to whom they concern. Belongs to the event loop."""

    _replies: AwaitedReplies
    _send_call: Callable[[Any], None]
    """Sends the request of a call, which ``_begin`` or a caller has encoded."""

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""
        return len(self._replies)

    def call_plain(
        self, encode: Callable[[int], Any], decode: Decode
    ) -> tuple[int, asyncio.Future[Any]]:
        """Send a call with the request that ``encode`` makes for its id; return that as well.

        The future has what ``decode`` makes of the reply, or else the message. Raises
        LaneClosedError.
        """
        number = self._replies.next_number()
        payload = encode(number)
        future = self._replies.expect_plain(number, decode)
        self._send_call(payload)
        return number, future

    def call_plain_then(
        self, encode: Callable[[int], Any], decode: Decode, on_reply: OnReply
    ) -> int:
        """Send a call like ``call_plain``, with ``on_reply`` as in ``call_then``; return its id."""
        number = self._replies.next_number()
        payload = encode(number)
        self._replies.tell_plain(number, decode, on_reply)
        self._send_call(payload)
        return number

    def call_then(
        self,
        request: execution_pb2.CallRequest,
        what: str,
        on_reply: OnReply,
        tensors: CallTensors | None = None,
    ) -> None:
        """Send a call; ``on_reply`` is called as soon as the reply is read.

        It must not wait for anything, and raise nothing.
        """
        payload = self._begin(request, what, tensors)
        self._replies.tell(request.id, on_reply)
        self._send_call(payload)

    def _begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> Any:
        """Assign the call an id and return what to send. Raises LaneClosedError."""
        raise NotImplementedError
