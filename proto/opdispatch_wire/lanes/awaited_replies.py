"""The replies that are awaited on one lane."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.planned_calls import read_id
from opdispatch_wire.v1 import execution_pb2

Reply = asyncio.Future[execution_pb2.CallReply]
OnReply = Callable[[Any], object]
"""Called with the CallReply, or what was decoded of it, or LaneClosedError.

Returns False if the reply is not awaited any more.
"""


class AwaitedReplies:
    """Numbers calls, and hands replies to the waiting tasks. Belongs to the event loop."""

    def __init__(self, closed: str) -> None:
        """Take calls until ``fail_all``; ``closed`` says why there are none afterwards."""
        self._closed = closed
        self._has_failed = False
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._replies: dict[int, OnReply] = {}
        # Of those whose bytes can be decoded by the one who waits.
        self._decoders: dict[int, tuple[Decode, OnReply]] = {}

    def __len__(self) -> int:
        return len(self._replies) + len(self._decoders)

    def __contains__(self, number: int) -> bool:
        return number in self._replies or number in self._decoders

    def next_number(self) -> int:
        """Return an id that no call has had. Raises LaneClosedError after ``fail_all``."""
        if self._has_failed:
            raise LaneClosedError(self._closed, was_sent=False)
        self._number += 1
        return self._number

    def expect(self, number: int) -> Reply:
        """Return a future for the reply of that id; it fails with LaneClosedError."""
        future: Reply = self._loop.create_future()
        self._replies[number] = functools.partial(_settle, future)
        return future

    def expect_plain(self, number: int, decode: Decode) -> asyncio.Future[Any]:
        """Return a future for what ``decode`` makes of the reply, or else for the message."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._decoders[number] = decode, functools.partial(_settle, future)
        return future

    def tell_plain(self, number: int, decode: Decode, on_reply: OnReply) -> None:
        """Call ``on_reply`` with what ``decode`` makes of the reply, or else with the message."""
        self._decoders[number] = decode, on_reply

    def take_plain(self, payload: bytes | memoryview) -> bool:
        """Return whether a reply was to a call that can decode it, which has its result now."""
        if not self._decoders or (found := read_id(payload)) is None:
            return False
        number, place = found
        if number not in self._decoders:
            return False
        decode, on_reply = self._decoders.pop(number)
        if (result := decode(payload, place)) is None:
            self._replies[number] = on_reply  # the message follows
            return False
        on_reply(result)
        return True

    def tell(self, number: int, on_reply: OnReply) -> None:
        """Call ``on_reply`` with the reply of that id as soon as it is read."""
        self._replies[number] = on_reply

    def forget(self, number: int) -> bool:
        """Stop waiting for that reply; return whether it was still to come."""
        if self._decoders.pop(number, None) is not None:
            return True
        return self._replies.pop(number, None) is not None

    def take(self, reply: execution_pb2.CallReply) -> bool:
        """Hand a reply over; return whether it is still awaited."""
        on_reply = self._replies.pop(reply.id, None)
        return on_reply is not None and on_reply(reply) is not False

    def fail_all(
        self,
        why: str,
        cause: Exception | None = None,
        kind: type[LaneClosedError] = LaneClosedError,
    ) -> None:
        """Fail all calls, with an error of a kind: no reply comes any more."""
        self._has_failed = True  # first: what is called below may begin another call
        for number, (_, on_reply) in self._decoders.items():
            self._replies[number] = on_reply
        self._decoders.clear()
        replies, self._replies = self._replies, {}
        for on_reply in replies.values():
            failure = kind(why)
            failure.__cause__ = cause
            on_reply(failure)


def _settle(future: asyncio.Future[Any], result: Any) -> bool:
    if future.done():
        return False
    if isinstance(result, LaneClosedError):
        future.set_exception(result)
        future.exception()  # perhaps not awaited any more
    else:
        future.set_result(result)
    return True


def fail(future: asyncio.Future[Any], why: str, cause: Exception | None = None) -> None:
    """Fail ``future`` with LaneClosedError, unless it is done."""
    if not future.done():
        failure = LaneClosedError(why)
        failure.__cause__ = cause
        future.set_exception(failure)
        future.exception()  # perhaps not awaited any more
