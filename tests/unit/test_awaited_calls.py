"""Calls whose replies are awaited in an event loop, whatever sends them."""

import asyncio

import pytest

from opdispatch_wire.lanes.awaited_calls import AwaitedCalls
from opdispatch_wire.lanes.awaited_replies import AwaitedReplies
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.v1 import execution_pb2


class Calls(AwaitedCalls):
    """Keeps what it is to send."""

    def __init__(self):
        self._replies = AwaitedReplies("the line is closed")
        self.sent = []
        self._send_call = self.sent.append
        self.replies = self._replies

    def _begin(self, request, what, tensors):
        request.id = self._replies.next_number()
        return request


def encode(number):
    return bytes([number])


def decode(payload, place):
    return payload[place:]


def reply_to(number):
    return execution_pb2.CallReply(id=number).SerializeToString() + b"\x12\x00"


def test_calls_are_sent_with_their_ids_and_get_their_replies():
    async def run():
        calls, told = Calls(), []
        first, future = calls.call_plain(encode, decode)
        second = calls.call_plain_then(encode, decode, told.append)
        calls.call_then(execution_pb2.CallRequest(), "a call", told.append)
        assert calls.sent == [b"\x01", b"\x02", execution_pb2.CallRequest(id=3)]
        assert calls.calls_in_flight == 3
        for number in (second, first):
            assert calls.replies.take_plain(reply_to(number))
        calls.replies.take(execution_pb2.CallReply(id=3))
        assert await future == b"\x12\x00"
        assert told == [b"\x12\x00", execution_pb2.CallReply(id=3)]
        assert calls.calls_in_flight == 0

    asyncio.run(run())


def test_no_call_begins_once_the_others_fail():
    async def run():
        calls, refused = Calls(), []

        def call_again(result):
            for begin in (
                lambda: calls.call_plain(encode, decode),
                lambda: calls.call_plain_then(encode, decode, print),
                lambda: calls.call_then(execution_pb2.CallRequest(), "a call", print),
            ):
                with pytest.raises(LaneClosedError, match="the line is closed") as caught:
                    begin()
                refused.append(caught.value.was_sent)

        calls.call_plain_then(encode, decode, call_again)
        calls.replies.fail_all("the other side has gone")
        assert refused == [False, False, False]
        assert len(calls.sent) == 1

    asyncio.run(run())
