"""Replies of an event loop that are awaited for the same time fail in their order."""

from __future__ import annotations

import asyncio
from typing import Any

from opdispatch_client.lanes.overdue_replies import OverdueReplies


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is set: what is due then is called in the next turn."""

    now = 0.0

    def time(self) -> float:
        return self.now


def turn(loop: Clock, now: float) -> None:
    """Let the loop turn once at that time."""
    loop.now = now
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_a_reply_fails_at_its_deadline_and_later_ones_at_theirs():
    loop = Clock()
    overdue = OverdueReplies(loop, 2.0)
    replies: list[asyncio.Future[Any]] = []
    for now in (0.0, 0.5, 1.0):
        turn(loop, now)
        replies.append(loop.create_future())
        overdue.add(replies[-1])
    overdue.remove(replies[1])
    turn(loop, 1.9)
    assert not any(reply.done() for reply in replies)
    turn(loop, 2.0)
    assert [reply.done() for reply in replies] == [True, False, False]
    assert isinstance(replies[0].exception(), TimeoutError)
    turn(loop, 3.0)
    assert [reply.done() for reply in replies] == [True, False, True]
    assert isinstance(replies[2].exception(), TimeoutError)
    loop.close()


def test_a_reply_that_has_come_stays_as_it_is():
    loop = Clock()
    overdue = OverdueReplies(loop, 2.0)
    reply = loop.create_future()
    overdue.add(reply)
    reply.set_result(1)
    turn(loop, 3.0)
    assert reply.result() == 1
    loop.close()


def test_without_a_limit_and_after_the_end_no_reply_fails():
    loop = Clock()
    for overdue, stops in ((OverdueReplies(loop, None), False), (OverdueReplies(loop, 2.0), True)):
        reply = loop.create_future()
        overdue.add(reply)
        if stops:
            overdue.stop()
        turn(loop, loop.now + 3.0)
        assert not reply.done()
    loop.close()
