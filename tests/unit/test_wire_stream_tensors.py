"""The large tensors of a stream's calls, without a stream."""

from __future__ import annotations

import pytest

from opdispatch_wire.chunks import CHUNK_BYTES_KEY, CallTensors, LargeMessage
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.lanes import stream_tensors
from opdispatch_wire.lanes.stream_tensors import StreamTensors
from opdispatch_wire.v1 import execution_pb2

LIMIT = 4096
CHUNK = 1024


class Calls:
    """Those of one stream, whose other side takes chunks; ``sent`` is what they send themselves."""

    def __init__(self) -> None:
        self.sent: list[execution_pb2.CallRequest] = []
        self.tensors = StreamTensors(LIMIT, self._send)
        self.tensors.welcomed([(CHUNK_BYTES_KEY, str(CHUNK))])

    def _send(self, message: bytes | LargeMessage) -> None:
        assert isinstance(message, bytes)
        self.sent.append(execution_pb2.CallRequest.FromString(message))

    def begin(
        self, number: int, tensors: CallTensors | None, operator: str = "a::b"
    ) -> bytes | LargeMessage:
        request = execution_pb2.CallRequest(id=number, operator=operator)
        return self.tensors.begin(request, "the call", tensors)


def chunk_of(size: int, *, offset: int = 0, total: int = 0) -> execution_pb2.Chunk:
    total = total or size
    return execution_pb2.Chunk(tensor=0, offset=offset, length=total, total=total, data=b"x" * size)


def with_arguments(*sizes: int) -> CallTensors:
    tensors = CallTensors()
    tensors.arguments = [memoryview(bytes(size)) for size in sizes]
    return tensors


def test_a_call_without_large_tensors_is_its_message():
    calls = Calls()
    message = calls.begin(7, CallTensors())
    assert isinstance(message, bytes)
    assert execution_pb2.CallRequest.FromString(message).id == 7


def test_a_call_with_large_ones_is_their_chunks_and_its_message():
    calls = Calls()
    message = calls.begin(7, with_arguments(CHUNK + 1))
    assert isinstance(message, LargeMessage)
    pieces = [execution_pb2.CallRequest.FromString(p) for p in iter(message.next_piece, None)]
    assert [len(piece.chunk.data) for piece in pieces] == [CHUNK, 1, 0]
    assert pieces[-1].operator == "a::b"


def test_one_that_is_too_long_leaves_nothing():
    calls = Calls()
    with pytest.raises(MessageTooLargeError, match="the call has"):
        calls.begin(7, None, "a" * (LIMIT + 1))
    calls.tensors.take_chunk(7, chunk_of(8))
    assert calls.tensors.read_reply(execution_pb2.CallReply(id=7)).id == 7  # no chunk was kept


def test_forgetting_a_half_sent_tensor_sends_a_cancel():
    calls = Calls()
    message = calls.begin(7, with_arguments(4 * CHUNK))
    assert isinstance(message, LargeMessage)
    message.next_piece()
    calls.tensors.forget(7)
    assert message.next_piece() is None
    assert [(each.id, each.cancel) for each in calls.sent] == [(7, True)]
    calls.tensors.forget(7)
    assert len(calls.sent) == 1


def test_forgetting_a_sent_tensor_sends_nothing():
    calls = Calls()
    message = calls.begin(7, with_arguments(CHUNK))
    assert isinstance(message, LargeMessage)
    while message.next_piece() is not None:
        pass
    calls.tensors.forget(7)
    assert calls.sent == []


def test_the_results_are_put_together():
    calls, call = Calls(), CallTensors()
    calls.begin(7, call)
    calls.tensors.take_chunk(7, chunk_of(CHUNK, total=CHUNK + 1))
    calls.tensors.take_chunk(7, chunk_of(1, offset=CHUNK, total=CHUNK + 1))
    calls.tensors.read_reply(execution_pb2.CallReply(id=7))
    assert [bytes(result) for result in call.results] == [b"x" * (CHUNK + 1)]


def test_a_reply_before_all_of_its_tensors_is_an_error():
    calls = Calls()
    calls.begin(7, CallTensors())
    calls.tensors.take_chunk(7, chunk_of(1, total=2))
    with pytest.raises(WireError, match="1 of 2 bytes"):
        calls.tensors.read_reply(execution_pb2.CallReply(id=7))


def test_a_call_that_is_given_up_while_its_chunk_is_read_leaves_nothing():
    calls = Calls()

    class Impatient(CallTensors):
        def note_received(self, count: int, total: int) -> None:
            calls.tensors.forget(7)

    calls.begin(7, Impatient())
    calls.tensors.take_chunk(7, chunk_of(1, total=2))
    calls.tensors.read_reply(execution_pb2.CallReply(id=7))  # nothing is incomplete


def test_results_that_there_is_no_room_for_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_tensors, "RESULTS_LIMIT", 8192)
    calls = Calls()
    calls.begin(7, CallTensors())
    with pytest.raises(MessageTooLargeError, match="have 10000 bytes"):
        calls.tensors.take_chunk(7, chunk_of(1, total=10_000))


def test_at_the_end_nothing_is_left():
    calls = Calls()
    message = calls.begin(7, with_arguments(4 * CHUNK))
    calls.begin(8, CallTensors())
    calls.tensors.take_chunk(8, chunk_of(1, total=2))
    calls.tensors.end()
    assert isinstance(message, LargeMessage)
    assert message.next_piece() is None
    calls.tensors.read_reply(execution_pb2.CallReply(id=8))  # nothing is incomplete
