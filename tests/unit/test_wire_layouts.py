"""Tensors of other layouts on the wire: what went in comes out, or an error says why not."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    NestedArray,
    QuantizedArray,
    Tensor,
    nested_tensor,
    parse_schema,
    quantize_per_tensor,
    register_backend,
)
from opdispatch.arrays import find_layout, key_bits_of
from opdispatch_client.call_shape import call_shape
from opdispatch_server.daemon.calls.kernel_choice import _shape_of
from opdispatch_wire.calls import call_request, decode_arguments, undecoded_arguments
from opdispatch_wire.detached_tensors import CALL_REQUEST, attach, detach
from opdispatch_wire.errors import WireError
from opdispatch_wire.layouts import WireLayoutTensor
from opdispatch_wire.remote_values import RemoteFacts, facts_from_proto
from opdispatch_wire.shared_memory.shared_tensors import shared_memory_of
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import (
    step_value_from_proto,
    undecoded_from_proto,
    value_from_proto,
    value_to_proto,
)
from tests.simulated_accelerator import Accelerator

DENSE = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
K = DispatchKey
ARRAYS = {
    "sparse_coo": scipy.sparse.coo_array(DENSE),
    "sparse_csr": scipy.sparse.csr_array(DENSE),
    "quantized": quantize_per_tensor(DENSE, 0.5, 10, "quint8").array,
    "nested": nested_tensor([np.ones((2, 3)), np.zeros((1, 3))]).array,
}
REAL = [name for name in ARRAYS if name != "quantized"]  # integers require no gradients
each_layout = pytest.mark.parametrize("name", ARRAYS)


def with_gradients(name: str) -> Tensor:
    return Tensor(ARRAYS[name], requires_grad=name in REAL)


def with_room(array: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """The same matrix, with room for more values, as SciPy lets it have: see its ``prune``."""
    other = array.copy()
    other.indices = np.append(array.indices, np.full(3, -1, array.indices.dtype))
    other.data = np.append(array.data, [7.0, 7.0, 7.0])
    other.copy().check_format(full_check=True)
    return other


def same(one: object, other: object) -> None:
    """Both are arrays of one layout with equal parts."""
    one = one.array if isinstance(one, Tensor) else one
    other = other.array if isinstance(other, Tensor) else other
    layout = find_layout(type(one))
    assert layout is find_layout(type(other)) is not None
    assert layout.facts(one) == layout.facts(other)
    for mine, theirs in zip(layout.parts(one), layout.parts(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


@each_layout
def test_a_plain_array_comes_back_as_one(name: str):
    message = value_to_proto(ARRAYS[name])
    assert message.WhichOneof("kind") == name
    assert getattr(message, name).dispatch_keys == 0
    decoded = value_from_proto(message)
    assert not isinstance(decoded, Tensor)
    same(decoded, ARRAYS[name])


@pytest.mark.parametrize(
    ("name", "requires_grad"), [*((name, False) for name in ARRAYS), *((n, True) for n in REAL)]
)
def test_a_tensor_comes_back_with_its_keys(name: str, requires_grad: bool):
    tensor = Tensor(ARRAYS[name], requires_grad=requires_grad)
    decoded = value_from_proto(value_to_proto([tensor, {"x": tensor}]))
    for each in (decoded[0], decoded[1]["x"]):
        assert isinstance(each, Tensor)
        assert each.key_bits == tensor.key_bits
        assert each.requires_grad is requires_grad
        same(each, tensor)


def test_scipys_matrices_arrive_as_arrays():
    for cls in (scipy.sparse.coo_matrix, scipy.sparse.csr_matrix):
        decoded = value_from_proto(value_to_proto(cls(DENSE)))
        assert isinstance(decoded, scipy.sparse.sparray)
        np.testing.assert_array_equal(decoded.toarray(), DENSE)


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    count=st.integers(0, 6),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from(["bool", "int8", "uint64", "float32", "complex128"]),
)
def test_sparse_arrays_of_any_shape_and_dtype(shape: list[int], count: int, seed: int, dtype: str):
    rng = np.random.default_rng(seed)
    coords = tuple(rng.integers(0, extent, count) for extent in shape)
    array = scipy.sparse.coo_array((rng.integers(0, 2, count).astype(dtype), coords), shape=shape)
    same(value_from_proto(value_to_proto(array)), array)
    if len(shape) == 2:
        same(value_from_proto(value_to_proto(array.tocsr())), array.tocsr())


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.sampled_from(["bfloat16", "int16"]))
def test_nested_arrays_of_any_lengths(lengths: list[int], dtype: str):
    import ml_dtypes

    element = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    tensor = nested_tensor([np.full((n, 2), n).astype(element) for n in lengths])
    same(value_from_proto(value_to_proto(tensor)), tensor)


@each_layout
def test_arguments_are_read_only_and_results_are_not(name: str):
    layout = find_layout(type(ARRAYS[name]))
    message = value_to_proto(ARRAYS[name])
    for writable in (False, True):
        decoded = value_from_proto(message, writable=writable)
        assert layout.elements(decoded).flags.writeable is writable


@each_layout
def test_kernel_choice_sees_keys_and_shapes(name: str):
    for value in (ARRAYS[name], Tensor(ARRAYS[name]), with_gradients(name)):
        message = value_to_proto(value)
        seen = undecoded_from_proto(message)
        assert isinstance(seen, WireLayoutTensor)
        assert seen.key_bits == key_bits_of(value)
        assert (seen.shape, seen.dtype, seen.device) == (
            Tensor(value).shape,
            Tensor(value).dtype,
            "cpu",
        )
        assert seen.ndim == len(seen.shape)
        assert seen.nbytes == find_layout(type(ARRAYS[name])).nbytes(ARRAYS[name])
        assert value_to_proto(seen) == message
        assert name in repr(seen)


def test_a_quantized_number_and_its_keys():
    array = QuantizedArray(np.array(3, np.int8), 0.5, -1)
    decoded = value_from_proto(value_to_proto(array))
    assert decoded.shape == ()
    assert float(decoded.dequantize()) == 2
    assert undecoded_from_proto(value_to_proto(array)).shape == ()


def test_a_message_that_asks_for_gradients_alone_has_the_keys_of_a_tensor():
    message = value_to_proto(ARRAYS["nested"])
    message.nested.requires_grad = True
    wanted = Tensor(ARRAYS["nested"], requires_grad=True).key_bits
    assert undecoded_from_proto(message).key_bits == value_from_proto(message).key_bits == wanted


def test_remembered_choices_tell_layouts_and_keys_apart():
    values = [DENSE, *ARRAYS.values(), *map(Tensor, ARRAYS.values())]
    values += [Tensor(ARRAYS["nested"], requires_grad=True), [ARRAYS["sparse_coo"]]]
    shapes = {_shape_of(call_request("a::b", (value,), {})) for value in values}
    assert None not in shapes
    assert len(shapes) == len(values)
    kinds = {call_shape("a::b", (value,), {}) for value in values[:-2]}
    assert None not in kinds
    assert len(kinds) == len(values) - 2


@each_layout
def test_parts_may_lie_beside_the_message(name: str):
    big = {
        "sparse_coo": scipy.sparse.coo_array(np.eye(300)),
        "sparse_csr": scipy.sparse.csr_array(np.eye(300)),
        "quantized": quantize_per_tensor(np.eye(300), 0.5, 1, "qint32").array,
        "nested": nested_tensor([np.ones(300)] * 300).array,
    }[name]
    whole = call_request("a::b", (big, [big]), {"x": big}, request_id=9)
    data = whole.SerializeToString()
    small, tensors = detach(data, CALL_REQUEST, 1024)
    assert len(tensors) == 3 * len(find_layout(type(big)).part_names)
    assert len(small) < 2000
    pieces = attach(small, CALL_REQUEST, tensors)
    assert execution_pb2.CallRequest.FromString(b"".join(pieces.parts)) == whole


def test_parts_in_shared_memory_are_found():
    request = execution_pb2.CallRequest()
    for message in (request.args.add(), request.args.add().list.items.add()):
        message.sparse_coo.indices.memory.region = 1
        message.sparse_coo.values.memory.offset = 64
    request.args.add().nested.offsets.memory.region = 1
    places = [(memory.region, memory.offset) for memory in shared_memory_of(request)]
    assert places == [(1, 0), (0, 64), (1, 0), (0, 64), (1, 0)]


class Peer:
    """Shared memory that its owner goes on writing to: each read gives the same array."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = list(arrays)

    def place(self, *args: object) -> bool:
        return False

    def read(self, message: values_pb2.Tensor, *args: object, **options: object) -> np.ndarray:
        return self.arrays[message.memory.region]


def test_sender_cannot_change_indices_after_the_check():
    array = scipy.sparse.csr_array(DENSE)
    message = value_to_proto(array)
    peer = Peer(array.indptr, array.indices, array.data)
    for number, name in enumerate(("crow_indices", "col_indices", "values")):
        part = getattr(message.sparse_csr, name)
        part.memory.region, part.memory.length = number, len(part.data)
        part.data = b""
    decoded = value_from_proto(message, memory=peer)
    peer.arrays[0][:] = peer.arrays[1][:] = 1 << 20
    np.testing.assert_array_equal(decoded.toarray(), DENSE)
    assert np.shares_memory(decoded.data, peer.arrays[2])


def test_a_remote_tensors_layout_is_one_that_there_is():
    message = values_pb2.RemoteTensor(dtype="float64", layout="sparse_bsr")
    with pytest.raises(WireError, match=r"\$\.layout is 'sparse_bsr'; expected one of sparse_coo,"):
        facts_from_proto(message, at="$")
    message = values_pb2.RemoteTensor(dtype="float64", shape=[2, -1], layout="sparse_coo")
    with pytest.raises(WireError, match="expected no negative extent"):
        facts_from_proto(message, at="$")


@each_layout
def test_facts_of_a_remote_layout_tensor_round_trip(name: str):
    for value in (ARRAYS[name], with_gradients(name)):
        facts = RemoteFacts.of(value, at="$")
        assert (facts.layout, facts.key_bits) == (name, key_bits_of(value))
        assert facts.nbytes == find_layout(type(ARRAYS[name])).nbytes(ARRAYS[name])
        assert facts.shape == Tensor(value).shape
        message = values_pb2.RemoteTensor()
        facts.write_to(message)
        assert facts_from_proto(message, at="$") == facts


@pytest.mark.parametrize("name", ["quantized", "nested"])
def test_a_tensor_on_another_device_comes_back_there(name: str):
    registration = register_backend(Accelerator())
    try:
        there = Tensor(ARRAYS[name]).to("privateuseone:1")
        message = value_to_proto(there)
        assert undecoded_from_proto(message).device == "privateuseone:1"
        decoded = value_from_proto(message)
        assert decoded.device == "privateuseone:1"
        assert decoded.key_bits == there.key_bits
        same(decoded.to("cpu"), ARRAYS[name])
    finally:
        registration.close()
    with pytest.raises(WireError, match=r"\$\.\w+: this process has no backend"):
        value_from_proto(message)


@each_layout
def test_constants_of_a_program_have_no_tensors(name: str):
    with pytest.raises(WireError, match="is a tensor; expected a reference to an input"):
        step_value_from_proto(value_to_proto(ARRAYS[name]), at="$", reference=lambda *_: None)


@each_layout
def test_an_operator_that_writes_to_such_an_argument_is_refused(name: str):
    schema = parse_schema("a::b(Tensor(a!) x, Tensor y, *, Tensor(b!)[] out) -> ()")
    value = ARRAYS[name]
    request = call_request("a::b", (DENSE, value), {"out": [DENSE]})
    decode_arguments(request, schema)
    for args, out, place in (
        ((value, DENSE), [DENSE], r"\$\.args\[0\]"),
        ((DENSE, DENSE), [DENSE, value], r"\$\.kwargs\['out'\]\[1\]"),
    ):
        with pytest.raises(WireError, match=f"{place} is a {name} tensor, and the operator writes"):
            decode_arguments(call_request("a::b", args, {"out": out}), schema)
        undecoded_arguments(request)


@pytest.mark.parametrize("name", ["csc_array", "dok_array", "dok_matrix", "lil_array"])
def test_other_sparse_formats_are_refused_with_the_way_to_one_that_travels(name: str):
    """SciPy's ``dok`` classes are dicts besides."""
    value = getattr(scipy.sparse, name)(DENSE)
    with pytest.raises(WireError, match=rf"{name} cannot be sent; convert it with tocoo\(\) or"):
        value_to_proto(value)
    same(value_from_proto(value_to_proto(value.tocsr())), scipy.sparse.csr_array(DENSE))


def test_a_vector_by_rows_travels_as_it_is_a_tensor_in_one_process():
    vector = scipy.sparse.csr_array(np.array([1.0, 0.0, 2.0]))
    decoded = value_from_proto(value_to_proto(vector))
    same(decoded, vector)
    assert decoded.shape == Tensor(decoded).shape == (3,)
    message = value_to_proto(vector)
    message.sparse_csr.shape[0] = 2
    with pytest.raises(WireError, match=r"\$\.col_indices has index 2"):
        value_from_proto(message)
    message.sparse_csr.shape.extend([3])
    with pytest.raises(WireError, match=r"\$\.crow_indices has shape \[2\]"):
        value_from_proto(message)


def test_unrepresentable_layout_raises_wire_error():
    odd = scipy.sparse.csr_array(DENSE)
    odd.indices = odd.indices.astype(np.int16)
    with pytest.raises(
        WireError, match=r"\$ is not a valid sparse_csr tensor: col_indices has dtype int16"
    ):
        value_to_proto(odd)
    with pytest.raises(WireError, match="without dispatch keys"):
        value_to_proto(Tensor(ARRAYS["sparse_coo"], keys=DispatchKeySet()))
    assert isinstance(ARRAYS["nested"], NestedArray)


@pytest.mark.parametrize(
    "dense", [DENSE, np.zeros((2, 3)), DENSE[0]], ids=["matrix", "0", "vector"]
)
def test_of_a_sparse_csr_array_with_room_for_more_what_belongs_to_it_is_sent(dense: np.ndarray):
    array = scipy.sparse.csr_array(dense)
    layout = find_layout(type(array))
    roomy = with_room(array)
    same(value_from_proto(value_to_proto(roomy)), array)
    assert layout.nbytes(roomy) == layout.nbytes(array)
    np.testing.assert_array_equal(roomy.todense(), dense)
    assert len(roomy.data) == len(array.data) + 3, "it is as it was"


def test_a_sparse_csr_array_that_scipy_would_not_take_either_is_not_sent():
    array = with_room(ARRAYS["sparse_csr"])
    array.data = array.data[:-1]
    with pytest.raises(WireError, match=r"col_indices has shape \[6\]; expected \[5\]"):
        value_to_proto(array)
    array = with_room(ARRAYS["sparse_csr"])
    array.indptr = array.indptr + 5
    with pytest.raises(WireError, match="crow_indices begins with 5"):
        value_to_proto(array)
