"""The server side of a gRPC stream of calls, with a peer whose reading a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from opdispatch_server.call_context import CallContext
from opdispatch_server.serving.call_stream import CallStream
from opdispatch_wire.chunks import CHUNK_BYTES, CHUNK_BYTES_KEY
from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.chunk_assembler import TensorBudget
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT

CallReply = execution_pb2.CallReply
LARGE = 3 * CHUNK_BYTES


class Peer:
    """The context of a stream: messages to it are written when ``reads`` allows it."""

    def __init__(self) -> None:
        self.written: list[CallReply] = []
        self.beginning: list[CallReply] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.error: Exception | None = None
        self._is_writing = False

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ((CHUNK_BYTES_KEY, str(CHUNK_BYTES)),)

    async def send_initial_metadata(self, metadata: object) -> None:
        """Take the metadata."""

    async def write(self, message: bytes) -> None:
        assert not self._is_writing, "gRPC writes one message at a time"
        self._is_writing = True
        reply = CallReply.FromString(message)
        self.beginning.append(reply)
        try:
            await self.reads.wait()
            if self.error is not None:
                raise self.error
            await asyncio.sleep(0)
            self.written.append(reply)
        finally:
            self._is_writing = False


class Begun:
    """A call in progress."""

    def __init__(self, context: CallContext, on_reply: Callable[[Any], None]) -> None:
        self._tensors = context.tensors
        self._on_reply = on_reply
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True

    def reply(self, *, size: int = 0, text: str = "") -> None:
        reply = CallReply()
        reply.error.message = text
        if size:
            assert self._tensors is not None
            reply.ClearField("error")
            self._tensors.take_results(reply, [memoryview(bytes(size))])
        self._on_reply(reply)


class Runner:
    """Begins calls, whose replies come from the test."""

    def __init__(self) -> None:
        self.calls: dict[int, Begun] = {}

    def find_planned(self, payload: bytes) -> None:
        """No call has a plan."""

    def begin(
        self,
        request: execution_pb2.CallRequest,
        context: CallContext,
        on_reply: Callable[[Any], None],
    ) -> Begun:
        call = self.calls[request.id] = Begun(context, on_reply)
        return call


class Served:
    """A stream in a task of its own."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.runner = Runner()
        self._requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        runner: Any = self.runner
        context: Any = self.peer
        budget = TensorBudget(1 << 30, "the tensors of a test")
        self.stream = CallStream(runner, context, budget)
        self.task = asyncio.create_task(self.stream.serve(self._incoming()))

    async def _incoming(self) -> AsyncIterator[bytes]:
        while (request := await self._requests.get()) is not None:
            yield request

    def say(self, *requests: execution_pb2.CallRequest) -> None:
        for request in requests:
            self._requests.put_nowait(request.SerializeToString())

    async def call(self, *numbers: int) -> list[Begun]:
        """Make calls, and return those that the stream has begun by then."""
        self.say(*(execution_pb2.CallRequest(id=number) for number in numbers))
        await settle()
        return [self.runner.calls[number] for number in numbers if number in self.runner.calls]

    def end_requests(self) -> None:
        self._requests.put_nowait(None)

    async def end(self) -> None:
        self.end_requests()
        await asyncio.wait_for(self.task, LONGEST_WAIT)

    @property
    def written(self) -> list[int]:
        return [reply.id for reply in self.peer.written]


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST_WAIT):
        while not is_true():
            await asyncio.sleep(0)


async def test_reply_is_written_in_the_step_in_which_it_comes():
    served = Served()
    (call,) = await served.call(1)
    call.reply()
    assert [reply.id for reply in served.peer.beginning] == [1]
    await served.end()


async def test_replies_are_written_one_at_a_time_in_the_order_in_which_they_come():
    served = Served()
    calls = await served.call(*range(20))
    served.peer.reads.clear()
    for call in reversed(calls[10:]):
        call.reply()
    served.peer.reads.set()
    await settle()
    for call in calls[:10]:
        call.reply()
        await asyncio.sleep(0)
    await served.end()
    assert served.written == [*range(19, 9, -1), *range(10)]


async def test_small_reply_is_written_between_the_chunks_of_a_large_one():
    served = Served()
    large, small = await served.call(1, 2)
    served.peer.reads.clear()
    large.reply(size=LARGE)
    small.reply()
    served.peer.reads.set()
    await served.end()
    chunks = [reply.id for reply in served.peer.written if reply.HasField("chunk")]
    assert chunks == [1, 1, 1]
    assert served.written == [1, 2, 1, 1, 1]


async def test_peer_that_does_not_read_is_not_read_until_it_does():
    served = Served()
    served.peer.reads.clear()
    for number in range(200):
        for call in await served.call(number):
            call.reply(text="x" * 500_000)
        if number not in served.runner.calls:
            break
    else:
        raise AssertionError("the stream reads though its replies are not read")
    assert number > 2
    assert len(served.peer.beginning) == 1
    served.peer.reads.set()
    await until(lambda: number in served.runner.calls)
    served.runner.calls[number].reply()
    await served.end()
    assert served.written == list(range(number + 1))


async def test_cancel_is_read_while_a_reply_is_written():
    served = Served()
    first, _, third = await served.call(1, 2, 3)
    served.peer.reads.clear()
    first.reply()
    served.say(execution_pb2.CallRequest(id=2, cancel=True))
    await until(lambda: served.runner.calls[2].is_abandoned)
    assert served.written == []
    third.reply()
    served.peer.reads.set()
    await served.end()
    assert served.written == [1, 3]


async def test_cancel_ends_the_chunks_of_a_reply_that_is_being_written():
    served = Served()
    (large,) = await served.call(1)
    served.peer.reads.clear()
    large.reply(size=LARGE)
    served.say(execution_pb2.CallRequest(id=1, cancel=True))
    await settle()
    served.peer.reads.set()
    await settle()
    (again,) = await served.call(1)
    again.reply()
    await served.end()
    assert [reply.HasField("chunk") for reply in served.peer.written] == [True, False]


async def test_stream_ends_with_its_last_reply_written():
    served = Served()
    first, second = await served.call(1, 2)
    served.peer.reads.clear()
    first.reply()
    served.end_requests()
    await settle()
    second.reply()
    await settle()
    assert not served.task.done()
    served.peer.reads.set()
    await asyncio.wait_for(served.task, LONGEST_WAIT)
    assert served.written == [1, 2]


async def test_finish_waits_until_all_replies_are_written():
    served = Served()
    (call,) = await served.call(1)
    served.peer.reads.clear()
    finishing = asyncio.create_task(served.stream.finish())
    call.reply()
    await settle()
    assert not finishing.done()
    served.peer.reads.set()
    await asyncio.wait_for(finishing, LONGEST_WAIT)
    assert served.written == [1]
    await served.end()


async def test_invalid_message_ends_the_stream_though_the_peer_reads_no_reply(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("opdispatch_server.serving.call_stream._LAST_REPLIES", 0.01)
    served = Served()
    call, running = await served.call(1, 2)
    served.peer.reads.clear()
    call.reply()
    served.say(execution_pb2.CallRequest(id=2))
    with pytest.raises(WireError, match=r"\$\.id is 2"):
        await asyncio.wait_for(served.task, LONGEST_WAIT)
    assert running.is_abandoned


async def test_write_that_fails_ends_the_writing_and_leaves_the_reading():
    served = Served()
    first, second = await served.call(1, 2)
    served.peer.reads.clear()
    first.reply()
    served.peer.error = OSError("the peer has gone")
    served.peer.reads.set()
    await settle()
    second.reply()
    (third,) = await served.call(3)
    third.reply()
    await served.end()
    assert served.written == []
