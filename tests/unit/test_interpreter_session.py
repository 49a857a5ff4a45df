"""The way to an interpreter that is beyond this machine: a stream, and the session with it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest
import pytest_asyncio

from opdispatch_server.blame.suspicion import NO_CULPRIT
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.kernel_runs import KernelRuns
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_wire.calls import call_request
from opdispatch_wire.channel import server_options
from opdispatch_wire.errors import InterpreterDiedError
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2
from tests.waits import LONGEST_WAIT

CALL = call_request("a::b", [np.arange(3.0)], {})


class Interpreter:
    """The other side: it gives first arguments back, until ``leave`` is set."""

    def __init__(self) -> None:
        self.leave = asyncio.Event()

    async def serve(self, requests: AsyncIterator[execution_pb2.CallRequest], context: Any) -> None:
        await context.send_initial_metadata(())

        async def answer() -> None:
            async for request in requests:
                reply = execution_pb2.CallReply(id=request.id, returns=[request.args[0]])
                await context.write(reply)

        answering = asyncio.create_task(answer())
        await self.leave.wait()
        answering.cancel()


@pytest_asyncio.fixture
async def interpreter() -> Interpreter:
    return Interpreter()


@pytest_asyncio.fixture
async def session(interpreter: Interpreter) -> AsyncIterator[InterpreterSession]:
    server = grpc.aio.server(options=server_options(MAX_MESSAGE_BYTES_DEFAULT))
    handler = grpc.stream_stream_rpc_method_handler(
        interpreter.serve,
        execution_pb2.CallRequest.FromString,
        execution_pb2.CallReply.SerializeToString,
    )
    service = "opdispatch.v1.ExecutionService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"CallStream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield far_session(f"127.0.0.1:{port}")
    await server.stop(None)


def far_session(address: str) -> InterpreterSession:
    hello = interpreter_pb2.Hello(pid=1, address=address)
    return InterpreterSession(
        hello, "far", supervised=False, max_message_bytes=MAX_MESSAGE_BYTES_DEFAULT
    )


async def test_calls_are_made_once_it_has_joined(
    session: InterpreterSession, interpreter: Interpreter
):
    with pytest.raises(LaneClosedError, match="not joined yet") as caught:
        session.call(CALL, CallContext())
    assert not caught.value.was_sent
    await session.open_lane("")
    reply = await session.call(CALL, CallContext())
    assert reply.returns[0] == CALL.args[0]
    assert (session.calls_in_flight, session.calls_total) == (0, 1)
    session.end("the test is over")
    interpreter.leave.set()  # or its last replies would be waited for
    await session.close()


async def test_a_call_that_could_not_be_sent_has_never_started(session: InterpreterSession):
    """So it may run elsewhere, whatever it does."""
    runs = KernelRuns(
        InterpreterSessions(), lambda session, why: None, lambda session: NO_CULPRIT, None
    )
    session.end("gone")
    with pytest.raises(InterpreterDiedError, match="about to run a::b: gone") as caught:
        await runs.run(session, CALL, CallContext(), None)
    assert caught.value.facts["started"] == "no"
    assert runs.find(1) is None
    await session.close()


async def test_a_session_ends_with_its_stream(
    session: InterpreterSession, interpreter: Interpreter
):
    await session.open_lane("")
    interpreter.leave.set()
    async with asyncio.timeout(LONGEST_WAIT):
        await session.ended.wait()
    assert "its lane of calls ended" in str(session.death())
    with pytest.raises(LaneClosedError):
        session.call(CALL, CallContext())
    await session.close()


async def test_a_session_ends_if_the_interpreter_cannot_be_reached():
    session = far_session("127.0.0.1:1")
    await session.open_lane("/nowhere")
    assert not session.alive
    assert "the daemon cannot call it at 127.0.0.1:1: " in str(session.death())
    await session.close()


async def test_a_session_that_has_ended_meanwhile_keeps_no_stream(session: InterpreterSession):
    session.end("gone")
    await session.open_lane("")
    with pytest.raises(LaneClosedError):
        session.call(CALL, CallContext())
    await session.close()


async def test_answer_that_is_not_awaited_any_more_is_no_error():
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, about: reported.append(about))
    hello = interpreter_pb2.Hello(address="unix:/nowhere", pid=1)
    limit = MAX_MESSAGE_BYTES_DEFAULT
    session = InterpreterSession(hello, "worker-1", supervised=False, max_message_bytes=limit)
    session.post(interpreter_pb2.DaemonMessage(trim=interpreter_pb2.TrimMemory()))
    session.end("it has gone")
    await asyncio.sleep(0)
    gc.collect()
    assert reported == []
    await session.close()
