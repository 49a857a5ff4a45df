"""Calls of an interpreter that is beyond this machine: only gRPC leads there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest
import pytest_asyncio

from opdispatch_server.call_context import CallContext
from opdispatch_server.interpreter_session import InterpreterSession
from opdispatch_wire.calls import call_request
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_DEFAULT, server_options
from opdispatch_wire.chunked_tensors import ChunkedTensors
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.tensors import tensor_from_proto
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2

X = np.arange(1_000_000.0)


@pytest_asyncio.fixture
async def session() -> AsyncIterator[InterpreterSession]:
    """A session with a server that gives the first argument back."""

    async def call(request: execution_pb2.CallRequest, context: Any) -> execution_pb2.CallReply:
        return execution_pb2.CallReply(returns=[request.args[0]])

    server = grpc.aio.server(options=server_options(2 * MAX_MESSAGE_BYTES_DEFAULT))
    handler = grpc.unary_unary_rpc_method_handler(
        call,
        execution_pb2.CallRequest.FromString,
        execution_pb2.CallReply.SerializeToString,
    )
    service = "opdispatch.v1.ExecutionService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"Call": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    hello = interpreter_pb2.Hello(pid=1, address=f"127.0.0.1:{port}")
    session = InterpreterSession(
        hello, "far", supervised=False, max_message_bytes=MAX_MESSAGE_BYTES_DEFAULT
    )
    yield session
    session.end("the test has ended")
    await session.close()
    await server.stop(None)


def chunked(array: np.ndarray[Any, Any]) -> tuple[execution_pb2.CallRequest, CallContext]:
    tensors = ChunkedTensors(MAX_MESSAGE_BYTES_DEFAULT)
    return call_request("a::b", [array], {}, memory=tensors), CallContext(tensors=tensors)


async def test_tensors_that_came_in_chunks_are_in_the_message_there(session: InterpreterSession):
    request, context = chunked(X)
    assert request.ByteSize() < 1000
    reply = await session.call(request, context)
    np.testing.assert_array_equal(tensor_from_proto(reply.returns[0].tensor), X)


async def test_the_message_limit_is_one_for_them(session: InterpreterSession):
    with pytest.raises(MessageTooLargeError, match="the call of a::b has 80000"):
        await session.call(*chunked(np.zeros(10_000_000)))


async def test_a_tensor_that_did_not_come_is_that_calls_error(session: InterpreterSession):
    request, context = chunked(X)
    request.args[0].tensor.chunked.number = 1
    with pytest.raises(WireError, match="never came"):
        await session.call(request, context)
