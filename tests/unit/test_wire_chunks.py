"""Large tensors in chunks: what is cut is put together again, and nothing else is."""

import gc
import itertools
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.chunks import (
    CHUNK_BYTES,
    CHUNK_BYTES_KEY,
    LARGE_AT_ONCE,
    LargeMessage,
    MessageOutbox,
    chunk_metadata,
    encode_chunk,
    told_chunk_bytes,
)
from opdispatch_wire.errors import MessageTooLargeError, QueueFullError, WireError
from opdispatch_wire.lanes.blocking_outbox import BlockingOutbox
from opdispatch_wire.lanes.chunk_assembler import CALLS_AT_ONCE, ChunkAssembler, TensorBudget
from opdispatch_wire.tensors import tensor_from_proto
from opdispatch_wire.v1 import execution_pb2 as pb
from opdispatch_wire.v1 import values_pb2

LIMIT = 1 << 20


def assembler(limit=LIMIT):
    return ChunkAssembler(TensorBudget(limit, "the tensors"))


def chunk(tensor=0, offset=0, length=4, total=4, data=b"abcd"):
    return pb.Chunk(tensor=tensor, offset=offset, length=length, total=total, data=data)


def pieces_of(large):
    return list(iter(large.next_piece, None))


def large_message(number, tensors, chunk_bytes=3, **options):
    views = [memoryview(tensor) for tensor in tensors]
    message = pb.CallRequest(id=number, operator="a::b").SerializeToString()
    return LargeMessage(number, views, message, chunk_bytes, **options)


def test_a_chunk_put_together_by_hand_is_the_one_that_protobuf_makes():
    by_hand = encode_chunk(2**64 - 1, chunk(data=b"", length=2**40), b"x" * 300)
    whole = pb.CallRequest(id=2**64 - 1, chunk=chunk(data=b"x" * 300, length=2**40))
    assert pb.CallRequest.FromString(by_hand) == whole
    assert pb.CallReply.FromString(by_hand).chunk == whole.chunk


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=20), max_size=4), max_size=8),
    st.integers(1, 7),
    st.lists(st.booleans(), max_size=16),
)
def test_messages_that_take_turns_come_out_whole(messages, chunk_bytes, puts_another):
    outbox = MessageOutbox()
    waiting = dict(enumerate(messages))
    turns = itertools.cycle([*puts_another, True])
    taking = assembler()
    come = {}
    while len(come) < 2 * len(messages):
        if next(turns) and waiting:
            number, tensors = waiting.popitem()
            outbox.put(large_message(number, tensors, chunk_bytes))
            outbox.put(pb.CallRequest(id=1000 + number).SerializeToString())
        if (piece := outbox.next_piece()) is None:
            continue
        request = pb.CallRequest.FromString(piece)
        if request.HasField("chunk"):
            assert 1 <= len(request.chunk.data) <= chunk_bytes
            taking.take(request.id, request.chunk)
        else:
            come[request.id] = [bytes(tensor) for tensor in taking.finish(request.id)]
    assert {n: come[n] for n in range(len(messages))} == dict(enumerate(messages))
    assert outbox.next_piece() is None
    assert not taking.incomplete


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 4, st.binary(max_size=5)), max_size=12))
def test_any_chunks_give_a_whole_tensor_or_an_error(chunks):
    budget = TensorBudget(LIMIT, "the tensors")
    taking = ChunkAssembler(budget)
    taken = []
    for fields in chunks:
        one = chunk(*fields)
        try:
            taking.take(7, one)
            taken.append(one)
        except WireError:
            taken = []
    expected = {}
    for one in taken:
        contents = expected.setdefault(one.tensor, b"")
        assert one.offset == len(contents)
        expected[one.tensor] = contents + one.data
    try:
        tensors = [bytes(tensor) for tensor in taking.finish(7)]
    except WireError:
        assert sum(map(len, expected.values())) < taken[0].total
    else:
        assert tensors == [expected[n] for n in range(len(expected))]
    assert not taking.incomplete
    assert budget.held == 0


@pytest.mark.parametrize(
    ("chunks", "says"),
    [
        ([chunk(tensor=1)], "expected byte 0 of tensor 0"),
        ([chunk(offset=2)], "expected byte 0 of tensor 0"),
        ([chunk(data=b"")], "data is empty"),
        ([chunk(length=3)], "ends at byte 4, beyond the tensor.s length of 3"),
        ([chunk(length=0, total=0)], "ends at byte 4, beyond the tensor.s length of 0"),
        ([chunk(total=3)], "adds up to 4 bytes"),
        ([chunk(length=8, total=8), chunk(length=8, total=8)], "expected byte 4"),
        ([chunk(length=8, total=8), chunk(offset=2, length=8, total=8)], "expected byte 4"),
        ([chunk(length=8, total=8), chunk(offset=4, length=9, total=8)], "expected 8 as before"),
        ([chunk(length=8, total=8), chunk(offset=4, length=8, total=9)], "expected 8 as before"),
        ([chunk(length=8, total=8), chunk(1, 0, 4, 8)], "expected byte 4 of tensor 0"),
        ([chunk(total=8), chunk(1, 0, 5, 8)], "adds up to 9 bytes"),
        ([chunk(), chunk(offset=4)], "expected byte 0 of tensor 1"),
    ],
)
def test_a_chunk_that_cannot_follow_is_refused_and_leaves_nothing(chunks, says):
    taking = assembler()
    *before, last = chunks
    for one in before:
        taking.take(1, one)
    with pytest.raises(WireError, match=says):
        taking.take(1, last)
    assert not taking.incomplete
    assert taking.finish(1) == []


def test_incomplete_tensor_raises_wire_error():
    taking = assembler()
    taking.take(1, chunk(length=8, total=8))
    with pytest.raises(WireError, match="4 of 8 bytes"):
        taking.finish(1)
    taking.take(1, chunk(total=8))
    with pytest.raises(WireError, match="4 of 8 bytes"):
        taking.finish(1)


def test_more_than_the_limit_is_refused_before_anything_is_allocated():
    taking = assembler()
    with pytest.raises(MessageTooLargeError, match=f"the limit is {LIMIT} bytes") as caught:
        taking.take(1, chunk(length=2**62, total=2**62))
    assert "--max-call-bytes" in caught.value.hint
    # A total that is right, and a length that is not.
    with pytest.raises(WireError, match="adds up to"):
        taking.take(1, chunk(length=2**62))


def test_memory_counts_until_its_last_user_lets_go():
    whole = TensorBudget(3 * LIMIT // 2, "the tensors of all")
    one, other = (ChunkAssembler(TensorBudget(LIMIT, "its tensors", whole)) for _ in range(2))
    one.take(1, chunk(length=LIMIT, total=LIMIT))
    with pytest.raises(QueueFullError, match="its tensors hold") as caught:
        one.take(2, chunk(length=LIMIT, total=LIMIT))
    assert caught.value.facts["started"] == "no"
    with pytest.raises(QueueFullError, match="the tensors of all hold"):
        other.take(1, chunk(length=LIMIT, total=LIMIT))
    one.drop(1)
    other.take(1, chunk(length=LIMIT, total=LIMIT))
    assert whole.held == LIMIT
    other.clear()
    one.take(1, chunk(length=LIMIT, total=LIMIT, data=b"x" * LIMIT))
    (tensor,) = one.finish(1)
    array = np.frombuffer(tensor, np.uint8)[5:]
    del tensor
    assert whole.held == LIMIT
    del array
    assert whole.held == 0


def test_tiny_tensors_count_for_what_they_take():
    taking = assembler()
    for number in range(LIMIT // 4096):
        taking.take(0, chunk(number, 0, 1, LIMIT, b"x"))
    with pytest.raises(QueueFullError):
        taking.take(0, chunk(number + 1, 0, 1, LIMIT, b"x"))


def test_number_of_incomplete_calls_is_limited():
    taking = assembler(2**40)
    for number in range(CALLS_AT_ONCE):
        taking.take(number, chunk(total=8))
    with pytest.raises(WireError, match="1024"):
        taking.take(CALLS_AT_ONCE, chunk(total=8))


def test_idle_incomplete_tensors_are_dropped():
    taking = assembler()
    taking.take(1, chunk(total=8))
    assert taking.drop_idle(60) == []
    assert taking.drop_idle(-1) == [1]
    assert not taking.incomplete


def test_small_messages_overtake_and_large_ones_take_turns():
    outbox = MessageOutbox()
    for number in range(LARGE_AT_ONCE + 1):
        outbox.put(large_message(number, [b"abcdef"]))
    outbox.put(b"small")
    assert outbox.next_piece() == b"small"
    ids = [pb.CallRequest.FromString(outbox.next_piece()).id for _ in range(LARGE_AT_ONCE + 1)]
    assert ids == [0, 1, 2, 3, 0]
    for _ in range(100):
        outbox.put(b"small")
    following = [outbox.next_piece() for _ in range(50)]
    assert 2 <= len([piece for piece in following if piece != b"small"]) <= 4


def test_a_large_message_that_is_dropped_lets_go_of_its_tensors():
    tensor = np.zeros(10, np.uint8)
    large = LargeMessage(1, [tensor.data], b"", 3)
    assert large.next_piece() is not None
    gone = weakref.ref(tensor)
    del tensor
    large.is_dropped = True
    assert large.next_piece() is None
    gc.collect()
    assert gone() is None
    assert not large.is_finished


def test_sender_is_notified_of_sent_bytes():
    sent = []
    assert len(pieces_of(large_message(1, [b"abcd", b"ef"], on_sent=sent.append))) == 4
    assert sent == [3, 1, 2]


def test_the_blocking_outbox_ends_in_the_middle_of_a_large_message():
    outbox = BlockingOutbox()
    outbox.put(b"first")
    outbox.put(large_message(1, [b"abcdef"]))
    pieces = iter(outbox)
    assert next(pieces) == b"first"
    assert pb.CallRequest.FromString(next(pieces)).chunk.data == b"abc"
    outbox.end()
    assert list(pieces) == []


@pytest.mark.parametrize("told", ["", "-1", "x", "0", "511", b"1024"])
def test_a_peer_that_names_no_sensible_size_gets_no_chunks(told):
    assert told_chunk_bytes([(CHUNK_BYTES_KEY, told)], 64 * CHUNK_BYTES) == 0
    assert told_chunk_bytes(None, 10_000) == told_chunk_bytes([("other", "1024")], 10_000) == 0


def test_a_chunk_fits_into_a_message():
    large = 64 * CHUNK_BYTES
    assert told_chunk_bytes([chunk_metadata(large)], large) == CHUNK_BYTES
    assert told_chunk_bytes([chunk_metadata(4000)], large) == 2000
    assert told_chunk_bytes([chunk_metadata(large)], 4000) == 2000
    assert told_chunk_bytes([(CHUNK_BYTES_KEY, "9" * 4000)], large) == CHUNK_BYTES


@pytest.mark.parametrize(
    "array",
    [
        np.arange(1000.0),
        np.arange(1000, dtype=">f4"),
        np.arange(2000.0)[::-2].reshape(10, 100),
        np.arange(2000, dtype=np.uint8).view(bool),
    ],
    ids=lambda array: f"{array.dtype.str}{array.strides}",
)
def test_any_layout_arrives_as_the_same_elements(array):
    tensors = CallerTensors(256)
    message = values_pb2.Tensor(shape=array.shape)
    native = array.dtype.newbyteorder("=")
    message.dtype = native.name
    assert tensors.place(message, array, native, array)
    tensors.results = tensors.arguments
    back = tensor_from_proto(message, memory=tensors, writable=True)
    np.testing.assert_array_equal(back, array.astype(native))


def test_a_result_that_did_not_come_is_malformed():
    tensors = CallerTensors(256)
    tensors.results = [memoryview(b"12345678")]
    for number, length in ((1, 8), (0, 16)):
        message = values_pb2.Tensor(dtype="float64", shape=[length // 8])
        message.chunked.number, message.chunked.length = number, length
        with pytest.raises(WireError, match=r"\$\.chunked refers to .* was not received"):
            tensor_from_proto(message, memory=tensors)
    message = values_pb2.Tensor(dtype="bool", shape=[8])
    message.chunked.length = 8
    with pytest.raises(WireError, match=r"\$\.chunked has a byte that is not a bool"):
        tensor_from_proto(message, memory=tensors)
    message.data = b"x"
    with pytest.raises(WireError, match="both in data and in chunked"):
        tensor_from_proto(message, memory=tensors)
    with pytest.raises(WireError, match="no chunks were received"):
        tensor_from_proto(values_pb2.Tensor(dtype="bool", shape=[8], chunked={"length": 8}))


def test_a_copy_is_taken_of_what_its_caller_may_change():
    array = np.zeros(1000)
    for copies in (False, True):
        tensors = CallerTensors(256, copies=copies)
        assert tensors.place(values_pb2.Tensor(), array, array.dtype, array)
        array[:] = 7.0
        assert np.frombuffer(tensors.arguments[0])[0] == (0.0 if copies else 7.0)
        array[:] = 0.0


def test_arrays_beyond_the_inline_budget_go_in_chunks():
    tensors = CallerTensors(CHUNK_BYTES)
    array = np.zeros(CHUNK_BYTES // 4, np.uint8)
    inline = [not tensors.place(values_pb2.Tensor(), array, array.dtype, array) for _ in range(9)]
    assert inline == [True] * 4 + [False] * 5
    small = np.zeros(100)
    assert not tensors.place(values_pb2.Tensor(), small, small.dtype, small)


def test_an_on_progress_that_raises_is_asked_once(caplog):
    def on_progress(progress):
        raise ZeroDivisionError

    tensors = CallerTensors(256, on_progress)
    tensors.note_sent(1)
    tensors.note_received(1, 2)
    assert len(caplog.records) == 1
    assert "on_progress" in caplog.text
