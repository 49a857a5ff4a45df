"""When a load waits for an interpreter, and when it fails for the lack of one."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from opdispatch_server.daemon.libraries.placement import Place, Placement
from opdispatch_wire.errors import InterpreterNotFoundError

POOL = SimpleNamespace(reserved_for="environment 0123")


class Session(SimpleNamespace):
    """An interpreter, which is equal to itself alone."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Interpreters:
    """The interpreters of a daemon, as a placement sees them."""

    def __init__(self, *coming: str) -> None:
        self.ready: list[Any] = []
        self.coming = set(coming)
        pools = SimpleNamespace(
            ready=lambda pool: [each for each in self.ready if each.pool is pool],
            coming=lambda: set(self.coming),
            find=lambda name: POOL if name.startswith("env-") else None,
            check=lambda session, pool: None,
            explain_want=lambda pool: ("", ""),
        )
        sessions = SimpleNamespace(get_ready=self.get_ready)
        devices = SimpleNamespace(
            can_have=lambda kinds: lambda session: {*kinds} <= session.devices,
            names_of=lambda session: session.devices,
        )
        separation = SimpleNamespace(may_hold=lambda name, library: True)
        self.versions: list[Any] = []
        parts: tuple[Any, ...] = (sessions, pools, lambda: self.versions, devices, separation)
        self.placement = Placement(*parts)

    def get_ready(self, name: str) -> Any:
        for each in self.ready:
            if each.name == name:
                return each
        raise InterpreterNotFoundError(f"there is no interpreter named {name!r}")

    def join(self, name: str, *devices: str, pool: object = None, busy: bool = False) -> Any:
        self.coming.discard(name)
        session = Session(name=name, pool=pool, devices={"cpu", *devices}, loading=False, unfit="")
        session.busy, session.is_fit, session.supervised = busy, not busy, True
        self.ready.append(session)
        self.placement.note_change()
        return session

    def claim(self, patience: float = math.inf, **place: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.placement.claim(Place(**place), "image", patience))


async def has_waited(claim: asyncio.Task[Any]) -> bool:
    await asyncio.wait([claim], timeout=0)
    await asyncio.sleep(0)
    return not claim.done()


@pytest.mark.parametrize(
    "place", [{}, {"interpreter": "worker-2"}, {"device": "cuda:0"}, {"pool": POOL}]
)
async def test_a_load_waits_for_an_interpreter_that_is_being_started(place: dict[str, Any]):
    name = "env-2" if "pool" in place else "worker-2"
    interpreters = Interpreters(name)
    if place:
        interpreters.join("worker-1")  # which will not do
    claim = interpreters.claim(**place)
    assert await has_waited(claim)
    joined = interpreters.join(name, "cuda:0", pool=place.get("pool"))
    assert await claim is joined


async def test_a_load_waits_though_the_interpreter_that_it_has_waited_for_has_died():
    interpreters = Interpreters()
    importing = interpreters.join("worker-1")
    importing.loading = True
    claim = interpreters.claim()
    assert await has_waited(claim)
    interpreters.ready, interpreters.coming = [], {"worker-1"}
    interpreters.placement.note_change()
    assert await has_waited(claim)
    joined = interpreters.join("worker-1")
    assert await claim is joined


async def test_load_goes_to_the_interpreter_with_the_fewest_libraries():
    interpreters = Interpreters()
    most, fewest, fewer = (interpreters.join(f"worker-{number}") for number in (1, 2, 3))
    interpreters.versions = [
        SimpleNamespace(replicas=[SimpleNamespace(session=session) for session in sessions])
        for sessions in ([most, fewer], [most])
    ]
    assert [await interpreters.claim() for _ in range(3)] == [fewest, fewer, most]


async def test_a_load_waits_for_an_interpreter_that_a_kernel_keeps_busy():
    interpreters = Interpreters()
    busy = interpreters.join("worker-1", busy=True)
    claim = interpreters.claim()
    assert await has_waited(claim)
    busy.busy, busy.is_fit = False, True
    interpreters.placement.note_change()
    assert await claim is busy


@pytest.mark.parametrize(
    ("coming", "place"),
    [
        ((), {}),
        (("env-1",), {}),  # it is for others
        (("worker-1",), {"pool": POOL}),
        (("worker-1",), {"interpreter": "worker-2"}),
        (("worker-3",), {}),  # it is being drained
    ],
)
async def test_a_load_fails_at_once_where_no_interpreter_is_on_its_way(
    coming: tuple[str, ...], place: dict[str, Any]
):
    interpreters = Interpreters(*coming)
    interpreters.placement.restore_draining(["worker-3"])
    with pytest.raises(InterpreterNotFoundError):
        await interpreters.claim(**place)


async def test_a_load_fails_as_soon_as_the_interpreter_is_given_up():
    interpreters = Interpreters("worker-1")
    claim = interpreters.claim()
    assert await has_waited(claim)
    interpreters.coming = set()
    interpreters.placement.note_change()
    with pytest.raises(InterpreterNotFoundError, match="no interpreter is ready yet"):
        await claim


async def test_a_load_waits_no_longer_than_it_may():
    interpreters = Interpreters("worker-1")
    with pytest.raises(InterpreterNotFoundError):
        await interpreters.claim(patience=0.01)
    with pytest.raises(InterpreterNotFoundError):
        await interpreters.placement.claim(Place(), "image")
