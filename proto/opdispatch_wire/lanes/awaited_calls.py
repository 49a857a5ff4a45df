"""Send calls on a local lane or a stream whose replies are awaited in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from opdispatch_wire.chunks import CallTensors
from opdispatch_wire.lanes.awaited_replies import AwaitedReplies, OnReply
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.v1 import execution_pb2


class AwaitedCalls:
    """Sends calls, and passes on their replies. For use in its event loop only."""

    _replies: AwaitedReplies
    _send_call: Callable[[Any], None]
    """Sends the request of a call, which ``_begin`` or the caller has encoded."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""
        return len(self._replies)

    def call_plain(
        self, encode: Callable[[int], Any], decode: Decode
    ) -> tuple[int, asyncio.Future[Any]]:
        """Send a call with the request that ``encode`` writes for its id; return id and future.

        The future gets the reply as ``decode`` returns it, or the parsed message if that is None.
        Raises LaneClosedError.
        """
        number = self._replies.next_number()
        payload = encode(number)
        future = self._replies.expect_plain(number, decode)
        self._send_call(payload)
        return number, future

    def call_plain_then(
        self, encode: Callable[[int], Any], decode: Decode, on_reply: OnReply
    ) -> int:
        """Send a call as ``call_plain`` does, but call ``on_reply``; return the call's id."""
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
        """Send a call; ``on_reply`` is called with the reply as soon as it is read.

        It must neither block nor raise.
        """
        payload = self._begin(request, what, tensors)
        self._replies.tell(request.id, on_reply)
        self._send_call(payload)

    def _begin(
        self, request: execution_pb2.CallRequest, what: str, tensors: CallTensors | None
    ) -> Any:
        """Assign the call an id and return what to send. Raises LaneClosedError."""
        raise NotImplementedError
