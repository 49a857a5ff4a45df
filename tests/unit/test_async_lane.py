"""The calling side of a lane in an event loop, over a socket pair whose other end a test holds."""

from __future__ import annotations

import asyncio
import queue
import select
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.calls import call_request
from opdispatch_wire.chunks import BESIDE_BYTES, CHUNK_BYTES
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.lanes.frame_stream import HIGH_WATER
from opdispatch_wire.lanes.frames import Frame, FrameReader
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT, accept

LIMIT = 64 * 1024 * 1024


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(LONGEST_WAIT)
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_a_peer_may_write_its_replies_before_it_reads_on(
    pair: tuple[socket.socket, socket.socket],
):
    """As an interpreter does: the thread that reads runs the kernel, and writes its reply."""
    ours, theirs = pair
    words = "x" * (HIGH_WATER // 2)

    def answer(count: int) -> None:
        reader = FrameReader(LIMIT)
        for _ in range(count):
            while (frame := reader.next_frame()) is None:
                reader.received(theirs.recv_into(reader.space()))
            call = execution_pb2.CallRequest.FromString(bytes(frame[1]))
            reply = execution_pb2.CallReply(id=call.id)
            reply.error.message = words
            payload = reply.SerializeToString()
            theirs.sendall(frame_header(FrameKind.REPLY, len(payload)) + payload)

    lane = AsyncLane(ours, LIMIT)
    requests = [execution_pb2.CallRequest(operator=words) for _ in range(8)]
    answering = asyncio.create_task(asyncio.to_thread(answer, len(requests)))
    replies = [lane.call(request, "the call") for request in requests]
    async with asyncio.timeout(LONGEST_WAIT):
        for request, reply in zip(requests, replies, strict=True):
            assert (await reply).id == request.id
        await answering
    lane.close()


async def test_begun_calls_fail_when_the_peer_has_gone(
    pair: tuple[socket.socket, socket.socket],
):
    """And not while it begins it: what it notes of the call comes after that."""
    ours, theirs = pair
    lane = AsyncLane(ours, LIMIT)
    theirs.close()
    told: list[object] = []
    for _ in range(3):
        lane.call_then(execution_pb2.CallRequest(operator="a::b"), "the call", told.append)
        assert told == []
    await lane.ended
    assert [type(each) for each in told] == [LaneClosedError] * 3
    with pytest.raises(LaneClosedError):
        lane.call_then(execution_pb2.CallRequest(operator="a::b"), "the call", told.append)
    assert len(told) == 3


async def test_the_arguments_of_a_call_that_is_cancelled_are_the_callers_again(
    pair: tuple[socket.socket, socket.socket],
):
    """Send the part that the other side has not taken yet as it was."""
    ours, theirs = pair
    lane = AsyncLane(ours, LIMIT)
    argument, tensors = np.full(CHUNK_BYTES, 7.0), CallerTensors(BESIDE_BYTES)
    request = call_request("a::b", [argument], {}, memory=tensors)
    lane.call(request, "the call", tensors)
    lane.cancel(request.id)
    argument[:] = 8.0

    def read() -> list[Frame]:
        reader, frames = FrameReader(LIMIT), []
        while len(frames) < 2:
            while (frame := reader.next_frame()) is None:
                reader.received(theirs.recv_into(reader.space()))
            frames.append((frame[0], bytes(frame[1])))
        return frames

    (_, call), (kind, _) = await asyncio.to_thread(read)
    data = execution_pb2.CallRequest.FromString(call).args[0].tensor.data
    assert (np.frombuffer(data) == 7.0).all()
    assert kind is FrameKind.CANCEL
    lane.close()


class Announcing(ThreadPoolExecutor):
    """Its threads say that they have begun something."""

    def __init__(self) -> None:
        super().__init__(1)
        self.begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def run() -> Any:
            self.begun.put(None)
            return fn(*args, **kwargs)

        return super().submit(run)


async def test_connection_made_for_a_cancelled_caller_is_closed(tmp_path: Path):
    """It is closed there, and not by the garbage collector, which would warn of it."""
    loop, threads, path = asyncio.get_running_loop(), Announcing(), str(tmp_path / "lane")
    loop.set_default_executor(threads)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as other:
        listener.bind(path)
        listener.listen(0)
        other.connect(path)  # no other can, until it is accepted
        connecting = asyncio.create_task(AsyncLane.connect(path, LIMIT))
        await asyncio.sleep(0)
        threads.begun.get(timeout=LONGEST_WAIT)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        accept(listener).close()
        await loop.shutdown_default_executor()
        # If the thread had seen the cancellation before it connected, there is no second one.
        if select.select([listener], [], [], 0)[0]:
            accept(listener).close()
