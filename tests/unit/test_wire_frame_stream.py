"""A lane's connection in an event loop: the callback when the peer has everything."""

import asyncio
import socket

from opdispatch_wire.lanes.frame_kind import FrameKind
from opdispatch_wire.lanes.frame_stream import FrameStream
from tests.waits import LONGEST_WAIT


async def test_what_was_kept_for_a_turn_of_the_loop_is_drained_when_it_has_been_sent():
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
