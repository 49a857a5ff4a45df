"""Answers to the calls of one connection of any kind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from opdispatch_server.call_context import CallContext
from opdispatch_server.serving.calls_in_flight import CallsInFlight
from opdispatch_wire.errors import DeadlineExceededError
from opdispatch_wire.lanes.frame_outbox import FramePayload
from opdispatch_wire.status import error_from_status, status_from_error
from opdispatch_wire.v1 import execution_pb2
from tests.waits import LONGEST_WAIT

LATE = DeadlineExceededError("the deadline passed while a kernel was running")


class LateRunner:
    """Its calls are late in the moment in which their large results come."""

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def begin(self, *args: object) -> None:
        """No call is a quick one."""

    async def call(
        self, request: execution_pb2.CallRequest, context: CallContext, broken: object = None
    ) -> execution_pb2.CallReply:
        assert context.tensors is not None
        reply = execution_pb2.CallReply()
        context.tensors.take_results(reply, [memoryview(bytes(100_000))])
        if self._raises:
            raise LATE
        reply.error.CopyFrom(status_from_error(LATE))
        return reply


@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("takes_chunks", [True, False])
async def test_an_error_has_no_results_beside_it(takes_chunks: bool, raises: bool):
    sent: list[FramePayload] = []
    runner: Any = LateRunner(raises=raises)

    def send_large(number: int, tensors: object, reply: bytes) -> None:
        raise AssertionError("an error is small")

    calls = CallsInFlight(
        runner,
        sent.append,
        lambda is_full: None,
        send_large=send_large if takes_chunks else None,
    )
    calls.take(execution_pb2.CallRequest(id=1))
    async with asyncio.timeout(LONGEST_WAIT):
        await calls.wait_until_answered()
    (payload,) = sent
    assert isinstance(payload, bytes)
    reply = execution_pb2.CallReply.FromString(payload)
    assert isinstance(error_from_status(reply.error), DeadlineExceededError)
