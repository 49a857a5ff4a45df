"""An asyncio session's lane to its daemon when it breaks, with a peer that the test plays."""

from __future__ import annotations

import asyncio
import gc
import select
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from opdispatch_client.endpoint import resolve_endpoint
from opdispatch_client.lanes.async_to_daemon import AsyncDaemonLane
from opdispatch_client.listings import ServerInfo
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from tests.unit.lane_peer import LIMIT, Peer
from tests.waits import LONGEST_WAIT


class Daemon:
    """It says who it is when the test lets it: each time, or with an error."""

    def __init__(self, path: Path, peer: Peer) -> None:
        self.peer = peer
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.heeds_cancellation = True
        self.error: Exception | None = None
        address = f"unix://{path.with_name('daemon')}"
        self.info = ServerInfo(1, "1", LIMIT, 1, 1, (address,), str(path))
        self._channel = grpc.aio.insecure_channel(f"unix:{path.with_name('daemon')}")
        endpoint = resolve_endpoint(address, timeout=None, max_message_bytes=None, lane="local")
        self.lane = AsyncDaemonLane(endpoint, self._channel, self._introduce)

    async def _introduce(self) -> tuple[ServerInfo, int]:
        self.asked += 1
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            if self.heeds_cancellation:
                raise
        if self.error is not None:
            raise self.error
        return self.info, LIMIT

    async def open_and_break(self) -> None:
        accepting = asyncio.create_task(asyncio.to_thread(self.peer.accept))
        await self.lane.open(self.info, LIMIT)
        await accepting
        assert isinstance(self.lane.lane, AsyncLane)
        assert self.peer.connection is not None
        self.peer.connection.close()
        await self.lane.lane.ended

    async def get(self) -> Any:
        """A new lane, which the peer accepts."""
        accepting = asyncio.create_task(asyncio.to_thread(self.peer.accept))
        lane = await self.lane.get(None)
        await accepting
        return lane

    def has_hung_up(self, seconds: float = 0) -> bool:
        """Whether the side under test ends the lane in time."""
        assert self.peer.connection is not None
        is_readable = bool(select.select([self.peer.connection], [], [], seconds)[0])
        return is_readable and self.peer.connection.recv(1) == b""

    async def waiters(self, count: int) -> list[asyncio.Task[Any]]:
        """That many tasks that need the lane, and wait."""
        tasks = [asyncio.create_task(self.lane.get(None)) for _ in range(count)]
        while not self.asked:
            await asyncio.sleep(0)
        return tasks

    async def close(self) -> None:
        self.lane.close()
        await self._channel.close()


@pytest_asyncio.fixture
async def daemon(peer: Peer, tmp_path: Path) -> AsyncIterator[Daemon]:
    """One whose lane has just broken."""
    daemon = Daemon(tmp_path / "lane", peer)
    await daemon.open_and_break()
    yield daemon
    await daemon.close()


async def outcomes(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(LONGEST_WAIT):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_wait_for_a_new_lane_ends_at_the_deadline(daemon: Daemon):
    waiting = await daemon.waiters(1)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await daemon.lane.get(time.monotonic() + 0.01)
    assert daemon.asked == 1
    daemon.lane.close()
    await outcomes(waiting)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_attempt_outlives_its_beginner_and_serves_others(daemon: Daemon, is_cancelled: bool):
    if is_cancelled:
        (first,) = await daemon.waiters(1)
        first.cancel()
        assert isinstance((await outcomes([first]))[0], asyncio.CancelledError)
    else:
        with pytest.raises(TimeoutError):
            await daemon.lane.get(time.monotonic())
    waiting = await daemon.waiters(2)
    daemon.may_answer.set()
    lane = await daemon.get()
    assert await outcomes(waiting) == [lane, lane]
    assert not lane.is_closed
    assert daemon.asked == 1


async def test_a_peer_that_takes_a_lane_and_does_not_answer_is_not_waited_for(daemon: Daemon):
    daemon.may_answer.set()
    with pytest.raises(TimeoutError):
        await daemon.lane.get(time.monotonic() + 0.01)
    await asyncio.to_thread(daemon.peer.accept_without_answer)
    assert not daemon.has_hung_up()
    daemon.peer.welcome()
    lane = await daemon.lane.get(None)
    assert lane is not None
    assert not lane.is_closed
    assert daemon.asked == 1


async def test_waiters_share_the_error_of_one_attempt_and_the_next_retries(
    daemon: Daemon,
):
    waiting = await daemon.waiters(8)
    daemon.error = DaemonUnavailableError("it is away", hint="wait", address="here")
    daemon.may_answer.set()
    errors = await outcomes(waiting)
    assert daemon.asked == 1
    for error in errors:
        assert isinstance(error, DaemonUnavailableError)
        assert (str(error), error.facts) == ("it is away (wait)", {"address": "here"})
    assert len({id(error) for error in [daemon.error, *errors]}) == 9  # each raises its own
    daemon.error = None
    assert not (await daemon.get()).is_closed
    assert daemon.asked == 2


async def test_the_error_of_an_attempt_says_where_it_came_up(daemon: Daemon):
    daemon.error = ValueError("a bug")
    daemon.may_answer.set()
    with pytest.raises(ValueError, match="a bug") as why:
        await daemon.lane.get(None)
    assert why.traceback[-1].name == "_introduce"


async def test_asyncio_does_not_report_an_error_that_is_not_awaited_any_more(
    daemon: Daemon,
):
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with pytest.raises(TimeoutError):
        await daemon.lane.get(time.monotonic())
    daemon.error = DaemonUnavailableError("it is away")
    daemon.may_answer.set()
    while daemon.lane._attempt is not None:
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("heeds_cancellation", [True, False])
async def test_close_fails_waiters_and_leaves_no_lane(daemon: Daemon, heeds_cancellation: bool):
    daemon.heeds_cancellation = heeds_cancellation
    waiting = await daemon.waiters(2)
    daemon.lane.close()
    if not heeds_cancellation:
        await asyncio.to_thread(daemon.peer.accept)
    for error in await outcomes(waiting):
        assert isinstance(error, DaemonUnavailableError)
        assert "is closed" in str(error)
    if not heeds_cancellation:
        assert await asyncio.to_thread(daemon.has_hung_up, 20)
    assert daemon.asked == 1


async def test_closing_in_the_midst_of_the_handshake_ends_the_new_lane(daemon: Daemon):
    daemon.may_answer.set()
    waiting = await daemon.waiters(1)
    await asyncio.to_thread(daemon.peer.accept_without_answer)
    daemon.lane.close()
    (error,) = await outcomes(waiting)
    assert "is closed" in str(error)
    assert await asyncio.to_thread(daemon.has_hung_up, 20)


async def test_an_attempt_that_is_cancelled_with_all_other_tasks_is_no_end_of_the_session(
    daemon: Daemon,
):
    waiting = await daemon.waiters(1)
    for task in asyncio.all_tasks() - {asyncio.current_task(), *waiting}:
        task.cancel()
    assert isinstance((await outcomes(waiting))[0], LaneClosedError)
    daemon.may_answer.set()
    assert not (await daemon.get()).is_closed
