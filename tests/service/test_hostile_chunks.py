"""Chunks of large tensors, spoken by a client that checks nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.calls import call_request
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2
from tests.service.conftest import WriteLibrary
from tests.service.doors import Doors, door_library
from tests.service.running_daemon import RunningDaemon
from tests.service.test_call_stream import C, RawStream

SHARED_WORKERS = 1
X = np.arange(1000.0)
KEY = "opdispatch_chunk_bytes"


@pytest.fixture
def stream(channel: grpc.Channel) -> Iterator[RawStream]:
    stream = RawStream(channel)
    yield stream
    stream.close()


def say_chunk(stream: RawStream, number: int, data: bytes, **fields: int) -> None:
    fields = {"length": X.nbytes, "total": X.nbytes, **fields}
    chunk = execution_pb2.Chunk(data=data, **fields)
    stream.say(execution_pb2.CallRequest(id=number, chunk=chunk).SerializeToString())


def say_call(stream: RawStream, number: int, tensor: int = 0, length: int = X.nbytes) -> None:
    request = call_request("image::pipeline", [X], {}, request_id=number)
    request.args[0].tensor.ClearField("data")
    request.args[0].tensor.chunked.number = tensor
    request.args[0].tensor.chunked.length = length
    stream.say(request.SerializeToString())


def hear_error(stream: RawStream, number: int) -> Exception:
    reply = stream.hear()
    assert reply.id == number
    return error_from_status(reply.error)


def test_chunks_of_any_size_and_calls_between_them(unharmed: oc.Session, stream: RawStream):
    data = X.tobytes()
    for offset in range(0, len(data), 100):
        say_chunk(stream, 5, data[offset : offset + 100], offset=offset)
        if offset % 2000 == 0:
            stream.call(6 + offset, "image::pipeline", X)
            assert stream.hear().id == 6 + offset
    say_call(stream, 5)
    reply = stream.hear()  # inline: this client has not said that it takes chunks
    assert reply.returns[0].tensor.data == (1 - X * 3).tobytes()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"offset": 8}, "byte 8 of tensor 0; expected byte 0"),
        ({"tensor": 3}, "byte 0 of tensor 3"),
        ({"length": 4}, "beyond the tensor's length of 4"),
        ({"total": 4}, "adds up to 8000 bytes"),
        ({"length": 2**63}, "adds up to 9223372036854775808 bytes"),
    ],
)
def test_a_chunk_that_makes_no_sense_ends_the_stream(
    unharmed: oc.Session, stream: RawStream, fields: dict[str, int], says: str
):
    say_chunk(stream, 1, bytes(8), **fields)
    error = stream.error()
    assert error.code() is C.INVALID_ARGUMENT
    assert says in (error.details() or "")


@pytest.mark.parametrize("offset", [0, 4, 16], ids=["again", "overlapping", "after a gap"])
def test_a_chunk_out_of_order_ends_the_stream(unharmed: oc.Session, stream: RawStream, offset: int):
    say_chunk(stream, 1, bytes(8))
    say_chunk(stream, 1, bytes(8), offset=offset)
    error = stream.error()
    assert error.code() is C.INVALID_ARGUMENT
    assert "expected byte 8 of tensor 0" in (error.details() or "")


def test_a_call_whose_chunks_never_came_is_that_calls_error(
    unharmed: oc.Session, stream: RawStream
):
    say_call(stream, 1)
    assert "args[0].chunked" in str(hear_error(stream, 1))
    say_chunk(stream, 2, bytes(8))
    say_call(stream, 2)
    error = hear_error(stream, 2)
    assert isinstance(error, oc.WireError)
    assert "8 of 8000 bytes" in str(error)
    say_chunk(stream, 3, X.tobytes())
    say_call(stream, 3, tensor=1)
    assert "tensor 1 in chunks, which was not received" in str(hear_error(stream, 3))
    say_chunk(stream, 4, X.tobytes())
    say_call(stream, 4, length=8)
    assert "has 8 bytes, but 8000 were received" in str(hear_error(stream, 4))
    say_chunk(stream, 5, X.tobytes())
    stream.call(5, "image::pipeline", X)
    assert "refers to 0 tensors in chunks, but 1 were received" in str(hear_error(stream, 5))
    say_chunk(stream, 6, X.tobytes())
    say_call(stream, 6)
    assert not stream.hear().HasField("error")


def test_chunks_that_no_stream_brought_are_refused_everywhere(
    unharmed: oc.Session, channel: grpc.Channel
):
    request = call_request("image::pipeline", [X], {})
    request.args[0].tensor.ClearField("data")
    request.args[0].tensor.chunked.length = X.nbytes
    call: Any = channel.unary_unary("/opdispatch.v1.ExecutionService/Call")
    with pytest.raises(grpc.RpcError) as caught:
        call(request.SerializeToString())
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is C.INVALID_ARGUMENT
    assert "args[0].chunked" in (caught.value.details() or "")


def test_a_huge_length_allocates_nothing(unharmed: oc.Session, stream: RawStream):
    say_chunk(stream, 1, bytes(8), length=2**60, total=2**60)
    error = hear_error(stream, 1)
    assert isinstance(error, oc.MessageTooLargeError)
    assert "--max-call-bytes" in error.hint
    # What else comes of it is ignored, and so is the call itself.
    say_chunk(stream, 1, bytes(8), offset=8, length=2**60, total=2**60)
    say_call(stream, 1)
    stream.call(2, "image::pipeline", X)
    assert stream.hear().id == 2
    # The id is free again.
    stream.call(1, "image::pipeline", X)
    assert not stream.hear().HasField("error")


def test_half_tensors_are_as_many_as_calls(unharmed: oc.Session, stream: RawStream):
    for number in range(1024):
        say_chunk(stream, number, bytes(8))
    stream.call(5000, "image::pipeline", X)
    assert stream.hear().id == 5000
    say_chunk(stream, 1024, bytes(8))
    error = stream.error()
    assert error.code() is C.INVALID_ARGUMENT
    assert "the limit is 1024 calls with incomplete tensors" in (error.details() or "")


def test_refused_calls_that_are_never_cancelled_end_the_stream(
    unharmed: oc.Session, stream: RawStream
):
    for number in range(1025):
        say_chunk(stream, number, bytes(8), length=2**60, total=2**60)
    error = stream.error()
    assert error.code() is C.INVALID_ARGUMENT
    assert "were refused" in (error.details() or "")


def test_half_tensors_that_are_cancelled_leave_nothing(unharmed: oc.Session, stream: RawStream):
    for number in range(5000):
        say_chunk(stream, number, bytes(8), length=2**30, total=2**30)
        stream.say(execution_pb2.CallRequest(id=number, cancel=True).SerializeToString())
    stream.call(1, "image::pipeline", X)
    assert not stream.hear().HasField("error")


def test_a_client_that_goes_in_the_middle_leaves_nothing(
    unharmed: oc.Session, channel: grpc.Channel
):
    for _ in range(100):  # together far more than the daemon holds at a time
        stream = RawStream(channel)
        say_chunk(stream, 1, bytes(8), length=2**31, total=2**31)
        stream.call(2, "image::pipeline", X)
        assert not stream.hear().HasField("error")
        stream.close()


def test_a_chunk_for_a_call_under_way_ends_the_stream(
    lent_daemon: RunningDaemon,
    channel: grpc.Channel,
    write_library: WriteLibrary,
    tmp_path: Path,
):
    doors = Doors(tmp_path)
    with lent_daemon.connect() as session:
        session.load(write_library("doors", door_library("doors")))
        stream = RawStream(channel)
        stream.call(1, "doors::enter", X, doors.folder, "a")
        assert doors.next_inside() == "a"
        say_chunk(stream, 1, bytes(8))
        error = stream.error()
        assert error.code() is C.INVALID_ARGUMENT
        assert "$.id is 1" in (error.details() or "")
        doors.let_out()
        stream.close()
    doors.close()


def test_client_that_never_reads_a_large_reply_delays_no_other(
    unharmed: oc.Session, channel: grpc.Channel
):
    stream = RawStream(channel, **{KEY: str(2**20)})
    for number in range(4):
        stream.call(number, "image::invert", np.zeros(2_000_000))
    for _ in range(50):
        np.testing.assert_array_equal(unharmed.ops.image.pipeline(X), 1 - X * 3)
    stream.close()


def test_a_reply_comes_in_chunks_and_no_longer_ones_than_asked_for(
    unharmed: oc.Session, channel: grpc.Channel
):
    stream = RawStream(channel, **{KEY: "1000", "opdispatch_max_message_bytes": "4000"})
    stream.call(1, "image::invert", X)
    data = b""
    while (reply := stream.hear()).HasField("chunk"):
        assert reply.chunk.offset == len(data)
        assert len(reply.chunk.data) <= 1000
        data += reply.chunk.data
    assert data == (1 - X).tobytes()
    assert reply.returns[0].tensor.chunked.length == X.nbytes
    stream.close()
