"""Match the replies on one lane with the calls that await them."""

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
"""Called with the CallReply, the decoded reply, or LaneClosedError.

Returns False if the reply is no longer awaited.
"""


class AwaitedReplies:
    """Numbers calls, and passes replies to waiting tasks. For use in its event loop only."""

    def __init__(self, closed: str) -> None:
        """Accept calls until ``fail_all``; ``closed`` is the error message of later ones."""
        self._closed = closed
        self._has_failed = False
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._replies: dict[int, OnReply] = {}
        # Calls that decode the bytes of their replies themselves.
        self._decoders: dict[int, tuple[Decode, OnReply]] = {}

    def __len__(self) -> int:
        return len(self._replies) + len(self._decoders)

    def __contains__(self, number: int) -> bool:
        return number in self._replies or number in self._decoders

    def next_number(self) -> int:
        """Return an id that no call on this lane has had.

        Raises LaneClosedError after ``fail_all``.
        """
        if self._has_failed:
            raise LaneClosedError(self._closed, was_sent=False)
        self._number += 1
        return self._number

    def expect(self, number: int) -> Reply:
        """Return a future of the reply to that call; it fails with LaneClosedError."""
        future: Reply = self._loop.create_future()
        self._replies[number] = functools.partial(_settle, future)
        return future

    def expect_plain(self, number: int, decode: Decode) -> asyncio.Future[Any]:
        """Return a future of the reply as ``decode`` returns it, or parsed if that is None."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._decoders[number] = decode, functools.partial(_settle, future)
        return future

    def tell_plain(self, number: int, decode: Decode, on_reply: OnReply) -> None:
        """Call ``on_reply`` with the reply as ``decode`` returns it, or parsed if that is None."""
        self._decoders[number] = decode, on_reply

    def take_plain(self, payload: bytes | memoryview) -> bool:
        """Pass a reply to its call if that can decode the bytes; return whether it has."""
        if not self._decoders or (found := read_id(payload)) is None:
            return False
        number, place = found
        if number not in self._decoders:
            return False
        decode, on_reply = self._decoders.pop(number)
        if (result := decode(payload, place)) is None:
            self._replies[number] = on_reply  # ``take`` follows with the parsed message
            return False
        on_reply(result)
        return True

    def tell(self, number: int, on_reply: OnReply) -> None:
        """Call ``on_reply`` with the reply to that call as soon as it is read."""
        self._replies[number] = on_reply

    def forget(self, number: int) -> bool:
        """Stop waiting for a reply; return whether it had not come yet."""
        if self._decoders.pop(number, None) is not None:
            return True
        return self._replies.pop(number, None) is not None

    def take(self, reply: execution_pb2.CallReply) -> bool:
        """Pass a reply to its call; return whether it was still awaited."""
        on_reply = self._replies.pop(reply.id, None)
        return on_reply is not None and on_reply(reply) is not False

    def fail_all(
        self,
        why: str,
        cause: Exception | None = None,
        kind: type[LaneClosedError] = LaneClosedError,
    ) -> None:
        """Fail all calls with an error of that kind, because no more replies will come."""
        self._has_failed = True  # first: a callback below may begin another call
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
        future.exception()  # marks it as retrieved: the waiting task may have been cancelled
    else:
        future.set_result(result)
    return True


def fail(future: asyncio.Future[Any], why: str, cause: Exception | None = None) -> None:
    """Fail ``future`` with LaneClosedError, unless it is done."""
    if not future.done():
        failure = LaneClosedError(why)
        failure.__cause__ = cause
        future.set_exception(failure)
        future.exception()  # marks it as retrieved: the waiting task may have been cancelled
