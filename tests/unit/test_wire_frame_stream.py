"""A lane's connection in an event loop: when it sends, and the callback when that is done."""

import asyncio
import socket

from opdispatch_wire.errors import WireError
from opdispatch_wire.lanes.frame_kind import FrameKind, frame_header
from opdispatch_wire.lanes.frame_stream import FrameStream
from tests.waits import LONGEST_WAIT


async def test_corked_frames_drain_once_they_are_sent():
    here, there = socket.socketpair()
    drained = []
    stream = FrameStream(
        here,
        1024,
        lambda kind, payload: None,
        lambda error: None,
        on_drained=lambda: drained.append(stream.unsent_bytes),
    )
    stream.send(FrameKind.REPLY, b"first")
    stream.send(FrameKind.REPLY, b"second")
    assert stream.unsent_bytes
    async with asyncio.timeout(LONGEST_WAIT):
        while not drained:
            await asyncio.sleep(0)
    assert drained == [0]
    stream.close()
    there.close()


async def test_frames_that_answer_what_was_read_are_sent_in_the_same_turn_of_the_loop():
    here, there = socket.socketpair()
    asking, asked = socket.socketpair()
    answers = FrameStream(here, 1024, lambda kind, payload: None, lambda error: None)
    in_turns = []

    def answer(kind: FrameKind, payload: bytes | memoryview) -> None:
        answers.send(FrameKind.REPLY, bytes(payload))
        in_turns.append(answers.unsent_bytes)
        asyncio.get_running_loop().call_soon(next_turn)

    def next_turn() -> None:
        in_turns.append(answers.unsent_bytes)

    questions = FrameStream(asking, 1024, answer, lambda error: None)
    frame = frame_header(FrameKind.CALL, 1) + b"?"
    asked.sendall(3 * frame)
    async with asyncio.timeout(LONGEST_WAIT):
        while len(in_turns) < 6:
            await asyncio.sleep(0)
    # The first one at once, the others together.
    assert in_turns == [0, len(frame), 2 * len(frame), 0, 0, 0]
    assert len(there.recv(1024)) == 3 * len(frame)
    for stream in (answers, questions):
        stream.close()
    for connection in (there, asked):
        connection.close()


async def test_stream_whose_frame_could_not_be_processed_ends():
    here, there = socket.socketpair()
    reported, ends = [], []

    def fail(kind: FrameKind, payload: bytes | memoryview) -> None:
        raise MemoryError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    stream = FrameStream(here, 1024, fail, ends.append)
    there.sendall(2 * (frame_header(FrameKind.CALL, 1) + b"?"))
    async with asyncio.timeout(LONGEST_WAIT):
        while not reported:
            await asyncio.sleep(0)
    assert [type(each) for each in reported] == [MemoryError]
    assert [type(each) for each in ends] == [WireError]
    assert stream.is_closed
    there.close()
