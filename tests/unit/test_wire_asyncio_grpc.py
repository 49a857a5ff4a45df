"""Events of gRPC come to a busy event loop, too."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from opdispatch_wire.asyncio_grpc import asyncio_channel, asyncio_server, start_server

STREAMS = 300


async def echo(messages: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    async for message in messages:
        yield message


def serve(path: Path) -> grpc.aio.Server:
    """A server on a socket whose method ``/a/b`` answers with what it hears."""
    server = asyncio_server([])
    method = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a", {"b": method}),))
    server.add_insecure_port(f"unix:{path}")
    return server


@pytest.mark.asyncio
async def test_a_busy_loop_hears_of_all_that_has_come(tmp_path: Path):
    server = serve(tmp_path / "socket")
    await server.start()
    async with asyncio_channel(f"unix:{tmp_path / 'socket'}", []) as channel:
        streams = [channel.stream_stream("/a/b")() for _ in range(STREAMS)]

        async def ask(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
            await stream.write(b"x")
            assert await stream.read() == b"x"

        for stream in streams:
            await ask(stream)
        asking = asyncio.gather(*(ask(stream) for stream in streams))
        turns = 0
        while not asking.done():
            time.sleep(0.02)  # a turn in which the loop has much else to do
            await asyncio.sleep(0)
            turns += 1
        await asking
    await server.stop(None)
    # Where each turn reads one byte, those of 300 events fill the socket, and three quarters of
    # it have to be read before the next event comes: some 420 turns.
    assert turns < 200


@pytest.mark.asyncio
async def test_a_server_whose_start_is_cancelled_can_be_stopped(tmp_path: Path):
    server = serve(tmp_path / "socket")
    starting = asyncio.create_task(start_server(server))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.stop(None)
    failures = [task for task in asyncio.all_tasks() if task.done() and task.exception()]
    assert not failures
