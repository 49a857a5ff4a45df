"""Which streams to interpreters a session keeps, and which it opens when."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from opdispatch_client.endpoint import resolve_endpoint
from opdispatch_client.lanes import direct_streams
from opdispatch_client.lanes.async_direct_streams import AsyncDirectStreams
from opdispatch_client.lanes.direct_streams import BlockingDirectStreams, DirectStreams
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay
from opdispatch_client.lanes.routes import Routes
from opdispatch_wire.v1 import execution_pb2
from tests.unit.scarce_threads import ScarceThreads
from tests.waits import LONGEST_WAIT

LIMIT = 65536


class Stream:
    """It is open until it is closed, or breaks."""

    number = calls_in_flight = 0

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Streams(DirectStreams[Stream]):
    """A test says when what has begun to open is open."""

    def __init__(self, routes: Routes) -> None:
        endpoint = resolve_endpoint("127.0.0.1:1", timeout=1, max_message_bytes=None)
        super().__init__(endpoint, routes)
        self.opening: list[execution_pb2.RouteTarget] = []
        self.ended: list[Stream] = []

    def _begin_opening(self, target: execution_pb2.RouteTarget, limit: int) -> None:
        self.opening.append(target)

    def _end(self, stream: Stream) -> None:
        stream.close()
        self.ended.append(stream)

    def open_next(self, stream: Stream | None) -> None:
        self._opened(self.opening.pop(0), stream)


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
def streams(routes: Routes) -> Iterator[Streams]:
    streams = Streams(routes)
    yield streams
    streams.close()


def learn(routes: Routes, *sessions: int) -> None:
    targets = [execution_pb2.RouteTarget(session=n, ports=[n]) for n in sessions]
    reply = execution_pb2.CallReply(route=execution_pb2.Route(targets=targets))
    routes.learn("shape", reply)


def test_each_interpreter_is_tried_once_until_it_is_open(routes: Routes, streams: Streams):
    learn(routes, 1, 2)
    for _ in range(3):
        assert isinstance(streams.find("shape", LIMIT), RelayedWay)
    assert [target.session for target in streams.opening] == [1, 2]
    one = Stream()
    streams.open_next(one)
    for _ in range(3):
        way = streams.find("shape", LIMIT)
        assert isinstance(way, DirectWay)
        assert way.lane is one
    assert len(streams.opening) == 1


def test_ended_streams_are_dropped(routes: Routes, streams: Streams):
    """Also where no route leads to it any more: its interpreter has another number now."""
    first, second = Stream(), Stream()
    learn(routes, 1)
    streams.find("shape", LIMIT)
    streams.open_next(first)
    first.close()
    learn(routes, 2)
    streams.find("shape", LIMIT)
    streams.open_next(second)
    assert streams.ended == [first]
    assert not second.is_closed


def test_broken_stream_is_reopened_with_a_new_route(routes: Routes, streams: Streams):
    broken, again = Stream(), Stream()
    learn(routes, 1)
    streams.find("shape", LIMIT)
    streams.open_next(broken)
    broken.close()
    assert streams.find("shape", LIMIT) is None
    assert streams.ended == [broken]
    learn(routes, 1)
    assert isinstance(streams.find("shape", LIMIT), RelayedWay)
    streams.open_next(again)
    way = streams.find("shape", LIMIT)
    assert isinstance(way, DirectWay)
    assert way.lane is again


def test_stream_that_opens_after_close_is_closed(routes: Routes, streams: Streams):
    learn(routes, 1)
    streams.find("shape", LIMIT)
    streams.close()
    late = Stream()
    streams.open_next(late)
    assert late.is_closed
    assert not isinstance(streams.find("shape", LIMIT), DirectWay)


@pytest.mark.parametrize("name", ["direct-stream", "call-stream"])
def test_an_interpreter_is_tried_again_when_there_are_threads_again(
    routes: Routes, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Route calls through the daemon until then."""
    monkeypatch.setattr(direct_streams, "_UNREACHABLE_LASTS", 0.0)
    threads = ScarceThreads(monkeypatch, name)
    endpoint = resolve_endpoint("127.0.0.1:1", timeout=1, max_message_bytes=None)
    streams = BlockingDirectStreams(endpoint, routes)
    for tries in (1, 2):
        learn(routes, 1)
        assert not isinstance(streams.find("shape", LIMIT), DirectWay)
        for thread in threading.enumerate():
            if thread.name == "direct-stream":
                thread.join(LONGEST_WAIT)
        assert threads.tries == tries
    streams.close()


async def test_an_attempt_that_was_cancelled_is_made_again(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
):
    """By code that cancels all tasks, for one."""
    monkeypatch.setattr(direct_streams, "_UNREACHABLE_LASTS", 0.0)
    endpoint = resolve_endpoint("127.0.0.1:1", timeout=1, max_message_bytes=None)
    streams = AsyncDirectStreams(endpoint, routes)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for _ in range(2):
            learn(routes, silent.getsockname()[1])
            others = asyncio.all_tasks()
            assert isinstance(streams.find("shape", LIMIT), RelayedWay)
            [opening] = asyncio.all_tasks() - others
            await asyncio.sleep(0)  # it has begun
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
    streams.close()
