"""Every kind of value, there and back; every way for one to be wrong, with its place."""

import math
import reprlib
import struct
from contextlib import suppress
from enum import IntEnum, StrEnum

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opdispatch.arrays import CPU_BITS, CUDA_BITS, key_bits_of
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.calls import call_request
from opdispatch_wire.dtypes import ITEM_SIZES, WIRE_DTYPES
from opdispatch_wire.errors import MessageTooLargeError, WireError
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST
from opdispatch_wire.nesting_limits import MAX_NESTING, MAX_VALUES, ValueCount
from opdispatch_wire.v1 import values_pb2 as pb
from opdispatch_wire.values import (
    WireTensor,
    fill_value,
    undecoded_from_proto,
    value_from_proto,
    value_to_proto,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.one_of(st.booleans(), INT64, st.floats(), st.complex_numbers())
ARRAYS = st.sampled_from(
    [n for n, dtype in WIRE_DTYPES.items() if dtype.type.__module__ == "numpy"]
).flatmap(
    lambda name: hnp.arrays(
        WIRE_DTYPES[name], hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
    )
)
LEAVES = st.one_of(
    st.none(),
    NUMBERS,
    st.text(),
    st.sampled_from(list(WIRE_DTYPES.values())),
    ARRAYS,
)
KEYS = st.one_of(st.booleans(), INT64, st.floats(allow_nan=False), st.text())
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


def there_and_back(value, **options):
    data = value_to_proto(value).SerializeToString()
    return value_from_proto(pb.Value.FromString(data), **options)


def same(one, two):
    """Equal in value and in type, at every level; NaN is the same as NaN, 0.0 is not -0.0."""
    if type(one) is not type(two):
        return False
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return same(list(one), list(two)) and same(list(one.values()), list(two.values()))
    if isinstance(one, float):
        both_nan = math.isnan(one) and math.isnan(two)
        return both_nan or struct.pack("d", one) == struct.pack("d", two)
    if isinstance(one, complex):
        return same(one.real, two.real) and same(one.imag, two.imag)
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    return one == two


@settings(deadline=None)
@given(VALUES)
def test_values_round_trip_with_their_types(value):
    assert same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, 1 + 0j, "1", None, False, 0, 0.0, 0j, "", -0.0, [], {}, [[]], [{}]]
)
def test_values_that_are_equal_or_empty_keep_their_type(value):
    assert same(there_and_back(value), value)


def test_infinities_and_nan_survive():
    back = there_and_back([math.inf, -math.inf, math.nan, complex(math.nan, -math.inf)])
    assert back[:2] == [math.inf, -math.inf]
    assert math.isnan(back[2])
    assert math.isnan(back[3].real)
    assert back[3].imag == -math.inf


def test_a_tuple_comes_back_as_a_list():
    assert there_and_back((1, (2.0, None))) == [1, [2.0, None]]


def test_enumerations_go_as_what_they_are():
    Colour = IntEnum("Colour", {"RED": 7})  # noqa: N806
    Mode = StrEnum("Mode", {"NEAREST": "nearest"})  # noqa: N806
    assert same(there_and_back([Colour.RED, Mode.NEAREST]), [7, "nearest"])


def test_anything_with_an_index_is_an_integer():
    class Three:
        def __index__(self):
            return 3

    assert same(there_and_back(Three()), 3)


def test_dtypes_of_the_wire_are_all_whose_elements_are_whole_bytes():
    assert {name: dtype.itemsize for name, dtype in WIRE_DTYPES.items()} == ITEM_SIZES
    assert {name for name in dir(ml_dtypes) if name.startswith("float8_")} <= ITEM_SIZES.keys()


@pytest.mark.parametrize("name", sorted(WIRE_DTYPES))
def test_every_dtype_has_values_and_a_name(name):
    dtype = WIRE_DTYPES[name]
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert same(there_and_back(array), array)
    assert value_to_proto(dtype).dtype == name
    assert there_and_back(dtype) is dtype or there_and_back(dtype) == dtype
    assert there_and_back(dtype.type) == dtype


def test_numpy_text_is_text():
    assert same(there_and_back(np.str_("a")), "a")


def test_arrays_within_lists_are_writable_if_asked_for():
    message = value_to_proto([np.arange(3)])
    assert value_from_proto(message, writable=True)[0].flags.writeable
    assert not value_from_proto(message)[0].flags.writeable


@given(st.text() | st.text("a'\x00\n", min_size=8, max_size=32))
def test_a_place_names_keys_cut_short(key: str):
    with pytest.raises(WireError) as caught:
        value_to_proto({key: object()})
    place = f"$[{reprlib.repr(key)}]: "
    assert str(caught.value).startswith(place)


def test_keys_of_dicts_may_be_numpy_numbers():
    assert same(there_and_back({np.int32(1): 2, np.str_("a"): 3}), {1: 2, "a": 3})


def test_an_undecoded_tensor_knows_what_the_dispatcher_asks():
    message = value_to_proto({"x": [np.ones((2, 3), np.float32), None]})
    tensor, nothing = undecoded_from_proto(message)["x"]
    assert nothing is None
    assert (tensor.dtype, tensor.shape, tensor.ndim) == (np.float32, (2, 3), 2)
    assert (tensor.device, tensor.key_bits, tensor.requires_grad) == ("cpu", CPU_BITS, False)
    assert key_bits_of(tensor) == CPU_BITS
    assert value_to_proto(tensor).tensor == message.dict.entries[0].value.list.items[0].tensor
    tensor.message.device = "cuda:1"
    assert WireTensor(tensor.message).key_bits == CUDA_BITS


def test_a_tensor_of_one_element_is_decoded_since_it_may_stand_for_a_number():
    for number in (np.float32(1.5), np.array(3), np.bool_(True)):
        assert same(undecoded_from_proto(value_to_proto(number)), np.asarray(number))
    with_keys = Tensor(np.array([[3.0]]), requires_grad=True)
    found = undecoded_from_proto(value_to_proto(with_keys))
    assert (type(found), found.item(), found.key_bits) == (Tensor, 3.0, with_keys.key_bits)
    for more in (Tensor(np.ones(2)), np.ones((1, 1)), np.ones((0, 1))):
        assert isinstance(undecoded_from_proto(value_to_proto(more)), WireTensor)


class Opaque:
    pass


def short_id(value):
    return value if type(value) is str and value.isascii() else type(value).__name__


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0, Opaque()], r"\$\[1\]: .*Opaque cannot be sent; accepted are None, bool"),
        ({1}, r"\$: set cannot be sent"),
        (b"abc", r"\$: bytes cannot be sent"),
        (np.ndarray, r"\$: type cannot be sent"),
        (2**63, r"\$: 9223372036854775808 is outside the 64-bit range"),
        ([-(2**63) - 1], r"\$\[0\]: -9223372036854775809 is outside"),
        (10**5000, r"\$: an integer of some 5000 digits is outside"),
        ({"a": {"b": 2**70}}, r"\$\['a'\]\['b'\]: 1180591620717411303424 is outside"),
        ({(1, 2): 3}, r"\$ has a key of type tuple"),
        ({2**63: 3}, r"\$ key 9223372036854775808: .*outside"),
        ("a\ud800", r"\$: the text has a lone surrogate at index 1"),
        (np.array([None]), r"\$: dtype 'object' has no .*accepted are bool, int8"),
        (np.array(["a"]), r"dtype '<U1' has no"),
        (np.str_("x") + np.str_("\udfff"), "surrogate"),
        (np.bytes_(b"x"), r"dtype '\|S1' has no"),
        (np.datetime64("2026-11-21"), "datetime64"),
        (np.zeros(2, "V3"), r"dtype '\|V3' has no"),
        (np.zeros(2, [("a", "i4")]), "has no representation"),
        (np.zeros(2, np.longdouble), "float128"),
        (np.zeros(2, ml_dtypes.int4), "int4"),
        (np.dtype("U3"), "has no representation"),
        (
            np.ma.masked_array([1, 2], [True, False]),
            r"\$ is a masked array, which would lose its mask",
        ),
        (Tensor(np.ones(2), keys=DispatchKeySet()), "without dispatch keys"),
    ],
    ids=short_id,
)
def test_unsupported_value_error_names_the_place(value, words):
    with pytest.raises(WireError, match=words):
        value_to_proto(value)


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: {"k": v}], ids=["lists", "dicts"])
def test_nesting_ends_at_the_limit_both_ways(wrap):
    value = 1
    for _ in range(MAX_NESTING):
        value = wrap(value)
    assert there_and_back(value) == value
    with pytest.raises(ArgumentError, match=f"more than {MAX_NESTING} levels"):
        value_to_proto(wrap(value))
    message = value_to_proto(value)
    outer = pb.Value()
    if isinstance(value, list):
        outer.list.items.add().CopyFrom(message)
    else:
        entry = outer.dict.entries.add()
        entry.key.text = "k"
        entry.value.CopyFrom(message)
    for decode in (value_from_proto, undecoded_from_proto):
        with pytest.raises(WireError, match=f"more than {MAX_NESTING} levels"):
            decode(outer)


def test_a_list_within_itself_is_refused():
    loop = []
    loop.append(loop)
    for value in (loop, {"a": loop}, [[], ([1], loop)]):
        with pytest.raises(
            ArgumentError, match=r"\$.*levels deep; does one of them contain itself"
        ):
            value_to_proto(value)


def nested_message():
    message = pb.Value()
    inner = message.list.items.add()
    inner.dict.entries.add().key.text = "k"
    return message, inner.dict.entries[0]


def test_a_value_without_a_kind_is_refused_where_it_is():
    message, entry = nested_message()
    with pytest.raises(WireError, match=r"\$\[0\]\['k'\] is empty") as caught:
        value_from_proto(message)
    assert "newer" in caught.value.hint
    entry.value.none.SetInParent()
    assert value_from_proto(message) == [{"k": None}]


def test_malformed_values_say_where():
    message, entry = nested_message()
    entry.value.argument.position = 0
    with pytest.raises(WireError, match=r"args\[1\]\[0\]\['k'\] is an argument reference"):
        value_from_proto(message, at="$.args[1]")
    entry.value.device = "cuda:x"
    with pytest.raises(WireError, match=r"\['k'\]: unknown device 'cuda:x'"):
        value_from_proto(message)
    entry.value.dtype = "object"
    with pytest.raises(WireError, match=r"\['k'\]: unknown dtype 'object'"):
        value_from_proto(message)
    entry.key.list.SetInParent()
    with pytest.raises(WireError, match=r"\$\[0\]\.entries\[0\]\.key is list"):
        value_from_proto(message)
    entry.key.Clear()
    with pytest.raises(WireError, match=r"\.key is empty"):
        value_from_proto(message)


def test_a_key_twice_is_refused():
    message, first = nested_message()
    first.value.none.SetInParent()
    first.key.integer = 1
    second = message.list.items[0].dict.entries.add()
    second.key.boolean = True
    second.value.none.SetInParent()
    with pytest.raises(WireError, match=r"\$\[0\] has the key True twice"):
        value_from_proto(message)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0", "cuda:12"])
def test_devices_are_texts(device):
    assert value_from_proto(pb.Value(device=device)) == device


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_from_a_peer_raise_anything_but_a_wire_error(data):
    message = pb.Value()
    try:
        message.ParseFromString(data)
    except Exception:  # protobuf's own: gRPC never hands such a message on
        return
    with suppress(WireError):
        value_from_proto(message)


def test_types_of_python_that_are_dtypes_are_sent_as_such():
    for kind in (bool, int, float, complex):
        assert there_and_back(kind) == np.dtype(kind)
    with pytest.raises(WireError, match="type cannot be sent"):
        value_to_proto(str)


@pytest.mark.parametrize("part", ["t", b"t".decode() * 9, [0] * 100])
def test_texts_and_packed_numbers_in_lists_are_counted_before_they_are_encoded(part):
    count, message = ValueCount(), pb.Value()
    fill_value(message, part, at="$", count=ValueCount())
    count.take_bytes(MAX_MESSAGE_BYTES_HIGHEST)
    with pytest.raises(MessageTooLargeError, match="send it in parts"):
        fill_value(pb.Value(), [1, part], at="$", count=count)


def test_values_are_counted_over_all_arguments_of_a_call():
    half = ["t"] * (MAX_VALUES // 2)
    assert len(call_request("t::f", [half], {"y": half}).args[0].list.items) == MAX_VALUES // 2
    with pytest.raises(ArgumentError, match=f"more than {MAX_VALUES} values"):
        call_request("t::f", [half, half], {"y": ["t"]})
