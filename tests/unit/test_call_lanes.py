"""The daemon's end of a local lane: large calls, and the bytes that they have while they come."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from typing import Any

import pytest
import pytest_asyncio

from opdispatch_server.daemon.calls.byte_budget import ByteBudget
from opdispatch_server.daemon.servicers.local_lanes import STALL_SECONDS, CallLane
from opdispatch_wire.lanes import lane_messages
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.protocol_version import PROTOCOL_VERSION
from opdispatch_wire.v1 import execution_pb2, lane_pb2
from tests.waits import LONGEST_WAIT

LIMIT = 1 << 24
MIB = 1 << 20


class Runner:
    """It answers every call."""

    def begin(self, *args: object) -> None:
        """No call is a quick one."""

    async def call(self, *args: object) -> execution_pb2.CallReply:
        return execution_pb2.CallReply()


class Looks:
    """When a lane looks for progress: nothing passes but what the test lets pass."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call_later = loop.call_later
        self._planned: list[tuple[asyncio.TimerHandle, Callable[[], object]]] = []
        monkeypatch.setattr(loop, "call_later", self._plan)

    def _plan(self, delay: float, callback: Any, *args: Any) -> asyncio.TimerHandle:
        if delay != STALL_SECONDS:
            return self._call_later(delay, callback, *args)
        handle = self._call_later(3600, callback, *args)
        self._planned.append((handle, lambda: callback(*args)))
        return handle

    def next(self) -> None:
        """The one that is due first."""
        while self._planned:
            handle, look = self._planned.pop(0)
            if not handle.cancelled():
                handle.cancel()
                return look()
        raise AssertionError("no thread would look")


def schemas_of(operator: str) -> list[str]:
    known = {"a::b": ["a::b(Tensor x) -> Tensor"], "a::long": [f"a::long({'int a, ' * 9999})"]}
    return known[operator]


async def greet(theirs: socket.socket, operator: str) -> list[str]:
    """Say hello, and return the schemas that the daemon's answer has."""
    hello = lane_pb2.LaneHello(protocol_version=PROTOCOL_VERSION, operator=operator)
    payload = hello.SerializeToString()
    await send(theirs, frame_header(FrameKind.HELLO, len(payload)) + payload)
    answer = await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
    kind, received = answer[4], answer[8:]
    return list(lane_messages.read_welcome((FrameKind(kind), received)).schemas)


@pytest.mark.parametrize(
    ("operator", "schemas"), [("a::b", schemas_of("a::b")), ("a::long", []), ("", [])]
)
async def test_a_lane_tells_the_schemas_of_the_operator_that_its_peer_names(
    operator: str, schemas: list[str]
):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    runner: Any = Runner()
    budget = ByteBudget(8 * MIB)
    lane = CallLane(ours, runner, schemas_of, LIMIT, LIMIT, budget, lambda lane: None, "")
    with closing(theirs):
        assert await greet(theirs, operator) == schemas
        lane.close()


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[tuple[CallLane, socket.socket, ByteBudget]]:
    """A lane, its other side, and the budget for its large calls."""
    budget = ByteBudget(8 * MIB)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.setblocking(False)
    runner: Any = Runner()
    lane = CallLane(ours, runner, schemas_of, LIMIT, LIMIT, budget, lambda lane: None, "")
    with closing(theirs):
        await greet(theirs, "")
        yield lane, theirs, budget
        lane.close()


async def send(connection: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, data)


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST_WAIT):
        while not reached():
            await asyncio.sleep(0)


def call(number: int) -> bytes:
    request = execution_pb2.CallRequest(id=number, operator="a::b")
    request.args.add().text = "x" * MIB
    payload = request.SerializeToString()
    return frame_header(FrameKind.CALL, len(payload)) + payload


async def begin(ends: tuple[CallLane, socket.socket, ByteBudget], number: int, size: int) -> int:
    """Send the beginning of a large call; return how much of it has arrived."""
    lane, theirs, _ = ends
    await send(theirs, call(number)[:size])
    received = size - len(frame_header(FrameKind.CALL, 0))
    await until(lambda: lane._stream.received_of_long == received)
    return received


async def test_a_call_of_which_nothing_comes_has_no_bytes_after_a_while(
    ends: tuple[CallLane, socket.socket, ByteBudget], monkeypatch: pytest.MonkeyPatch
):
    _, _, budget = ends
    looks = Looks(asyncio.get_running_loop(), monkeypatch)
    await begin(ends, 1, MIB // 2)
    assert budget.used > MIB
    looks.next()
    assert budget.used > MIB
    looks.next()
    assert budget.used == 0


async def test_a_call_that_comes_is_not_measured_by_the_one_before_it(
    ends: tuple[CallLane, socket.socket, ByteBudget], monkeypatch: pytest.MonkeyPatch
):
    _, theirs, budget = ends
    looks = Looks(asyncio.get_running_loop(), monkeypatch)
    await begin(ends, 1, 3 * MIB // 4)
    looks.next()
    await send(theirs, call(1)[3 * MIB // 4 :])
    await until(lambda: budget.used == 0)
    # Less of it has come than of the first one when that was looked at.
    await begin(ends, 2, MIB // 2)
    looks.next()
    assert budget.used > MIB


async def test_a_call_that_only_cancels_has_no_bytes_once_it_was_read(
    ends: tuple[CallLane, socket.socket, ByteBudget],
):
    _, theirs, budget = ends
    request = execution_pb2.CallRequest(id=7, operator="a::b", cancel=True)
    request.args.add().text = "x" * MIB
    payload = request.SerializeToString()
    await begin(ends, 1, MIB // 2)
    await send(theirs, call(1)[MIB // 2 :] + frame_header(FrameKind.CALL, len(payload)) + payload)
    await send(theirs, call(2))
    # Its answer comes after all of that was read.
    answered = b""
    reply = execution_pb2.CallReply(id=2).SerializeToString()
    while not answered.endswith(reply):
        answered += await asyncio.get_running_loop().sock_recv(theirs, 1 << 16)
    await until(lambda: budget.used == 0)
