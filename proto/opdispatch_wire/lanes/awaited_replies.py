"""The replies that are awaited on one lane."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2

Reply = asyncio.Future[execution_pb2.CallReply]
OnReply = Callable[["execution_pb2.CallReply | LaneClosedError"], object]
"""Returns False if the reply is not awaited any more."""


class AwaitedReplies:
    """Numbers calls, and hands replies to the waiting tasks. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._replies: dict[int, OnReply] = {}

    def __len__(self) -> int:
        return len(self._replies)

    def next_number(self) -> int:
        """Return an id that no call has had."""
        self._number += 1
        return self._number

    def expect(self, number: int) -> Reply:
        """Return a future for the reply of that id; it fails with LaneClosedError."""
        future: Reply = self._loop.create_future()
        self._replies[number] = functools.partial(_settle, future)
        return future

    def tell(self, number: int, on_reply: OnReply) -> None:
        """Call ``on_reply`` with the reply of that id as soon as it is read."""
        self._replies[number] = on_reply

    def forget(self, number: int) -> bool:
        """Stop waiting for that reply; return whether it was still to come."""
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
        replies, self._replies = self._replies, {}
        for on_reply in replies.values():
            failure = kind(why)
            failure.__cause__ = cause
            on_reply(failure)


def _settle(future: Reply, result: execution_pb2.CallReply | LaneClosedError) -> bool:
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
