"""Which interpreters are known, and for how long those that have ended are."""

from __future__ import annotations

import itertools
from typing import Any

from opdispatch_server.daemon.interpreters.sessions import (
    ENDED_REMEMBERED,
    InterpreterSessions,
)


class Session:
    """Stand-in for a session in the list of sessions."""

    numbers = itertools.count(1)

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(self.numbers)
        self.alive = self.ready = True
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


def admitted(sessions: InterpreterSessions, name: str) -> Any:
    session: Any = Session(name)
    sessions.admit(session)
    return session


async def test_the_last_that_have_ended_are_remembered():
    sessions = InterpreterSessions()
    ended = [admitted(sessions, f"worker-{n}") for n in range(ENDED_REMEMBERED + 2)]
    for session in ended:
        session.alive = False
        await sessions.leave(session)
    found = [sessions.find_number(session.number) for session in ended]
    assert found == [None, None, *ended[2:]]
    assert sessions.all() == []


async def test_one_that_has_ended_is_known_until_it_has_left():
    sessions = InterpreterSessions()
    one, other = admitted(sessions, "one"), admitted(sessions, "other")
    for number in range(ENDED_REMEMBERED):
        session = admitted(sessions, f"worker-{number}")
        session.alive = False
        await sessions.leave(session)
    one.alive = other.alive = False  # in one moment, and then one after the other leaves
    await sessions.leave(other)
    assert sessions.find_number(one.number) is one
    await sessions.leave(one)
    assert one.is_closed
    assert other.is_closed
    assert sessions.find_number(one.number) is one
