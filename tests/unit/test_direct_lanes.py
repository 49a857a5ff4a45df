"""The lanes of a session to interpreters, with ones that the test plays."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opdispatch_client.lanes.async_direct_local import AsyncDirectLanes
from opdispatch_client.lanes.direct_local import DirectLanes
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay
from opdispatch_client.lanes.routes import Routes
from opdispatch_client.session_memory import SessionMemory
from opdispatch_wire.v1 import execution_pb2
from tests.service.running_daemon import Background
from tests.unit.lane_peer import LIMIT, Peer
from tests.waits import LONGEST_WAIT

SHAPE = "a call"
SOON = 0.05
FAR = 60.0


@pytest.fixture
def routes(tmp_path: Path) -> Routes:
    """One route, to the peer."""
    reply = execution_pb2.CallReply()
    reply.route.targets.add(session=1, lane=str(tmp_path / "lane"))
    routes = Routes()
    routes.learn(SHAPE, reply)
    return routes


@pytest.fixture
def memory() -> SessionMemory:
    return SessionMemory(is_wanted=False, on_use=lambda: None)


@pytest.fixture
def lanes(memory: SessionMemory, routes: Routes) -> Iterator[DirectLanes]:
    lanes = DirectLanes(memory, routes)
    yield lanes
    lanes.close()


def in_time(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_call_waits_for_an_interpreter_no_longer_than_until_its_deadline(
    lanes: DirectLanes, peer: Peer, routes: Routes
):
    assert lanes.find(SHAPE, LIMIT, in_time(SOON)) is None
    assert routes.find(SHAPE) is None, "it is not tried again"


def test_expired_call_forgets_no_route(lanes: DirectLanes, peer: Peer, routes: Routes):
    with Background(peer.accept):  # and would answer
        assert isinstance(lanes.find(SHAPE, LIMIT, in_time(-1)), RelayedWay)
        assert routes.find(SHAPE) is not None
        assert isinstance(lanes.find(SHAPE, LIMIT, in_time(FAR)), DirectWay)


def test_other_calls_go_through_the_daemon_meanwhile(
    lanes: DirectLanes, peer: Peer, routes: Routes
):
    with Background(lanes.find, SHAPE, LIMIT, in_time(FAR)) as first:
        peer.accept_without_answer()
        assert isinstance(lanes.find(SHAPE, LIMIT, in_time(FAR)), RelayedWay)
        assert routes.find(SHAPE) is not None
        peer.welcome()
    way = first.result()
    assert isinstance(way, DirectWay)
    again = lanes.find(SHAPE, LIMIT, None)
    assert isinstance(again, DirectWay)
    assert again.lane is way.lane


def test_lane_that_opens_after_close_is_closed(lanes: DirectLanes, peer: Peer):
    with Background(lanes.find, SHAPE, LIMIT, None) as first:
        peer.accept_without_answer()
        lanes.close()
        peer.welcome()
    assert first.result() is None
    assert peer.connection is not None
    assert peer.connection.recv(1) == b""


async def test_a_task_waits_for_an_interpreter_no_longer_than_until_its_deadline(
    memory: SessionMemory, routes: Routes, peer: Peer
):
    lanes = AsyncDirectLanes(memory, routes)
    assert isinstance(await lanes.find(SHAPE, LIMIT, in_time(-1)), RelayedWay)
    assert routes.find(SHAPE) is not None, "the route is not to blame"
    assert await lanes.find(SHAPE, LIMIT, in_time(SOON)) is None
    assert routes.find(SHAPE) is None, "it is not tried again"
    lanes.close()


async def test_a_task_waits_for_a_thread_of_the_event_loop_no_longer_either(
    memory: SessionMemory, routes: Routes, peer: Peer
):
    lanes, may_end = AsyncDirectLanes(memory, routes), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        threads.submit(may_end.wait)  # the only one has something else to do
        try:
            async with asyncio.timeout(LONGEST_WAIT):
                assert await lanes.find(SHAPE, LIMIT, in_time(SOON)) is None
        finally:
            may_end.set()
    lanes.close()


async def test_other_tasks_go_through_the_daemon_meanwhile(
    memory: SessionMemory, routes: Routes, peer: Peer
):
    lanes = AsyncDirectLanes(memory, routes)
    first = asyncio.create_task(lanes.find(SHAPE, LIMIT, in_time(FAR)))
    await asyncio.to_thread(peer.accept_without_answer)
    assert isinstance(await lanes.find(SHAPE, LIMIT, in_time(FAR)), RelayedWay)
    assert routes.find(SHAPE) is not None
    peer.welcome()
    assert isinstance(await first, DirectWay)
    lanes.close()


async def test_asyncio_lane_that_opens_after_close_is_closed(
    memory: SessionMemory, routes: Routes, peer: Peer
):
    lanes = AsyncDirectLanes(memory, routes)
    first = asyncio.create_task(lanes.find(SHAPE, LIMIT, in_time(FAR)))
    await asyncio.to_thread(peer.accept_without_answer)
    lanes.close()
    peer.welcome()
    assert await first is None
    assert peer.connection is not None
    assert await asyncio.to_thread(peer.connection.recv, 1) == b""
