"""The end of routes with a change of the registry, and who is waited for after that."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from opdispatch_server.daemon.libraries import direct_routes
from opdispatch_server.daemon.libraries.direct_routes import DirectRoutes


class Session:
    """An interpreter; ``answer`` has it answer."""

    def __init__(self, *, busy: bool = False) -> None:
        self.alive, self.busy, self.direct_lane = True, busy, "/run/lane.sock"
        self.supervised = True
        self.told: list[int] = []
        self.answers: list[asyncio.Future[Any]] = []

    def post(self, message: Any) -> asyncio.Future[Any]:
        self.told.append(message.direct_calls.epoch)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]

    async def wait_for_direct_calls(self, load_id: int) -> None:
        assert load_id == 0, "of no library at all"

    def answer(self) -> None:
        for each in self.answers:
            if not each.done():
                each.set_result(None)


def routes_of(*sessions: Session) -> DirectRoutes:
    parts: tuple[Any, ...] = (None, SimpleNamespace(all=lambda: sessions), SimpleNamespace())
    return DirectRoutes(*parts, is_counted=lambda caller: False)


async def test_a_change_is_heard_when_all_that_listen_have_answered():
    quick, slow, busy = Session(), Session(), Session(busy=True)
    routes = routes_of(quick, slow, busy)
    await routes.heard()  # there was none
    routes.renew()
    quick.answer()
    heard = asyncio.create_task(routes.heard())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not heard.done()
    slow.answer()
    await heard
    assert len(busy.told) == 1
    assert quick.told == slow.told == busy.told


async def test_interpreters_take_no_direct_calls_until_a_change_is_over():
    session = Session()
    routes = routes_of(session)
    closing = asyncio.create_task(change(routes, session))
    await asyncio.sleep(0)
    session.answer()
    await closing
    first, within, after = session.told
    assert first == within == 0
    assert after


async def change(routes: DirectRoutes, session: Session) -> None:
    async with routes.closed():
        routes.renew()
        session.answer()


async def test_suspended_interpreter_is_sent_no_epoch_until_it_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(direct_routes, "HEARING_WAIT", 0)
    session, other = Session(), Session()
    routes = routes_of(session, other)
    await routes.suspend(session)
    routes.renew()
    routes.announce(session)
    async with routes.closed():
        session.answer()
        other.answer()
    assert not any(session.told)
    assert other.told[-1]
    routes.resume(session)
    assert session.told[-1] == other.told[-1]
    routes.resume(session)
    assert session.told.count(other.told[-1]) == 1, "it was suspended no more"


async def test_interpreter_of_a_stopping_daemon_is_sent_no_epoch():
    ours, remote = Session(), Session()
    remote.supervised = False
    routes = routes_of(ours, remote)
    routes.end()
    routes.renew()
    routes.announce(ours)
    assert not any(ours.told)
    assert remote.told[-1]
