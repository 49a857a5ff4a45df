"""Large tensors that a daemon waits for: who stops in the middle holds them no longer."""

from __future__ import annotations

import asyncio

import pytest

from opdispatch_server.serving.incoming_tensors import IncomingTensors
from opdispatch_wire.errors import DeadlineExceededError, WireError
from opdispatch_wire.lanes.chunk_assembler import TensorBudget
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT

LIMIT = 1 << 20


def chunk(offset: int = 0, *, length: int = LIMIT, data: bytes = b"abcd") -> execution_pb2.Chunk:
    return execution_pb2.Chunk(offset=offset, length=length, total=length, data=data)


async def test_a_call_that_stops_in_the_middle_is_refused_and_its_memory_free():
    budget = TensorBudget(LIMIT, "the tensors")
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    incoming = IncomingTensors(budget, replies.put_nowait, patience=0.05)
    incoming.take(7, chunk())
    assert budget.held == LIMIT
    async with asyncio.timeout(LONGEST_WAIT):
        reply = execution_pb2.CallReply.FromString(await replies.get())
    assert budget.held == 0
    assert reply.id == 7
    error = error_from_status(reply.error)
    assert isinstance(error, DeadlineExceededError)
    assert error.facts["started"] == "no"
    # What comes after all is ignored, once.
    incoming.take(7, chunk(4))
    assert incoming.finish(7) is None
    assert incoming.finish(7) == []
    assert replies.empty()
    incoming.close()


async def test_running_call_is_left_alone_and_so_is_an_unread_one():
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    incoming = IncomingTensors(TensorBudget(LIMIT, "the tensors"), replies.put_nowait, 0.2)
    incoming.take(1, chunk(length=8))
    loop = asyncio.get_running_loop()
    # Longer than its patience, but pauses in reading are noted in between.
    pause = [loop.call_later(seconds, incoming.note_pause) for seconds in (0.1, 0.2, 0.3)]
    over = loop.create_future()
    loop.call_later(0.35, over.set_result, None)
    await over
    assert replies.empty()
    incoming.take(1, chunk(4, length=8))
    tensors = incoming.finish(1)
    assert tensors is not None
    assert [bytes(tensor) for tensor in tensors] == [b"abcdabcd"]
    assert all(handle.when() < loop.time() for handle in pause)
    incoming.close()


async def test_refusal_is_sent_once_and_forgotten_when_the_call_is_cancelled():
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    incoming = IncomingTensors(TensorBudget(LIMIT, "the tensors"), replies.put_nowait)
    for offset in (0, 4, 8):
        incoming.take(1, chunk(offset, length=2 * LIMIT))
    assert replies.qsize() == 1
    incoming.drop(1)
    incoming.take(1, chunk(length=4))
    tensors = incoming.finish(1)
    assert tensors is not None
    assert len(tensors) == 1
    with pytest.raises(WireError, match="expected byte 0"):
        incoming.take(2, chunk(8))
    incoming.close()
