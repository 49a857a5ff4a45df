"""Messages of tensors whose parts do not fit together are refused, with the place."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opdispatch import DispatchKey, DispatchKeySet
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import tensor_to_proto
from opdispatch_wire.v1 import values_pb2
from opdispatch_wire.values import undecoded_from_proto, value_from_proto, value_to_proto
from tests.unit.layout_tensors import DENSE, coo, csr, nested, quantized

K = DispatchKey
ARRAYS = {
    "sparse_coo": coo().array,
    "sparse_csr": csr().array,
    "quantized": quantized().array,
    "nested": nested().array,
}


def change(name: str, edit: Callable[[values_pb2.Value], object]) -> values_pb2.Value:
    message = value_to_proto(ARRAYS[name])
    edit(message)
    return message


def put(field: str, array: np.ndarray) -> Callable[[values_pb2.Value], object]:
    def edit(message: values_pb2.Value) -> None:
        whole = getattr(message, message.WhichOneof("kind"))
        getattr(whole, field).CopyFrom(tensor_to_proto(array))

    return edit


def say(field: str, fact: object) -> Callable[[values_pb2.Value], object]:
    def edit(message: values_pb2.Value) -> None:
        setattr(getattr(message, message.WhichOneof("kind")), field, fact)

    return edit


def reshape(*shape: int) -> Callable[[values_pb2.Value], object]:
    def edit(message: values_pb2.Value) -> None:
        getattr(message, message.WhichOneof("kind")).shape[:] = shape

    return edit


def elsewhere(message: values_pb2.Value) -> None:
    message.sparse_coo.values.device = "cuda:0"


def with_keys(message: values_pb2.Value) -> None:
    message.nested.values.dispatch_keys = DispatchKeySet.of(K.CPU, K.Python).bits


def with_grad(message: values_pb2.Value) -> None:
    message.sparse_csr.values.requires_grad = True


def of_a_few_bytes(message: values_pb2.Value) -> None:
    message.sparse_csr.values.data = b"123"


HOSTILE = [
    ("sparse_coo", put("indices", np.array([[0, 1], [0, 1]])), r"\$\.indices has shape \[2, 2\]"),
    ("sparse_coo", put("indices", np.zeros((2, 3))), r"\$\.indices has dtype float64"),
    ("sparse_coo", put("values", np.zeros((3, 1))), r"\$\.values has shape \[3, 1\]"),
    ("sparse_coo", put("values", np.zeros(3, np.float16)), r"\$\.values has dtype float16"),
    ("sparse_coo", reshape(2), r"\$\.indices has shape \[2, 3\]; expected \[1, 3\]"),
    ("sparse_coo", reshape(), r"\$\.shape is \[\]"),
    ("sparse_coo", reshape(-2, 3), r"\$\.shape is \[-2, 3\]"),
    ("sparse_csr", reshape(3, 3), r"\$\.crow_indices has shape \[3\]; expected \[4\]"),
    ("sparse_csr", reshape(2, 3, 1), r"\$\.shape is \[2, 3, 1\]; expected one dimension or two"),
    ("sparse_csr", put("col_indices", np.zeros(2, np.int32)), r"\$\.col_indices has shape \[2\]"),
    ("sparse_csr", of_a_few_bytes, r"\$\.values\.data has 3 bytes"),
    ("quantized", say("scale", float("nan")), r"\$\.scale is nan; expected a finite number"),
    ("quantized", say("scale", float("inf")), r"\$\.scale is inf"),
    ("quantized", say("scale", 0.0), r"\$\.scale is 0\.0"),
    ("quantized", say("scale", 1e300), r"\$\.scale is 1e\+300"),
    ("quantized", say("zero_point", -1), r"\$\.zero_point is -1; expected one of uint8"),
    ("quantized", put("int_repr", DENSE), r"\$\.int_repr has dtype float64"),
    ("sparse_csr", with_grad, r"\$ has a part with dispatch keys"),
    ("nested", put("offsets", np.array([], np.int64)), r"\$\.offsets is empty"),
    ("nested", put("offsets", np.zeros((2, 2), np.int64)), r"\$\.offsets has shape \[2, 2\]"),
    ("nested", put("values", np.array(1.0)), r"\$\.values has no dimension"),
    ("quantized", say("requires_grad", True), r"\$\.requires_grad is set, but tensors of uint8"),
    ("nested", with_keys, r"\$ has a part with dispatch keys"),
]
# Only a process with the elements can see these.
OUT_OF_RANGE = [
    ("sparse_coo", reshape(2, 2), r"\$\.indices\[1\] has index 2, out of range for an extent of 2"),
    ("sparse_coo", put("indices", np.full((2, 3), -1)), r"\$\.indices\[0\] has index -1"),
    ("sparse_csr", reshape(2, 2), r"\$\.col_indices has index 2, out of range for an extent of 2"),
    (
        "sparse_csr",
        put("crow_indices", np.array([0, 4, 3], np.int32)),
        r"\$\.crow_indices decreases from 4 to 3 at index 2",
    ),
    ("sparse_csr", put("crow_indices", np.array([0, 1, 9], np.int32)), "crow_indices ends with 9"),
    (
        "nested",
        put("offsets", np.array([0, 3, 2, 3])),
        r"\$\.offsets decreases from 3 to 2 at index 2",
    ),
    ("nested", put("offsets", np.array([1, 2, 3])), r"\$\.offsets begins with 1; expected 0"),
    ("nested", put("offsets", np.array([0, 2, 4])), r"\$\.offsets ends with 4; expected 3"),
]


@pytest.mark.parametrize(("name", "edit", "error"), [*HOSTILE, *OUT_OF_RANGE])
def test_parts_that_do_not_fit_are_refused(name: str, edit: Callable, error: str):
    with pytest.raises(WireError, match=error):
        value_from_proto(change(name, edit))


@pytest.mark.parametrize(("name", "edit", "error"), HOSTILE)
def test_shapes_and_dtypes_are_refused_before_a_kernel_is_chosen(
    name: str, edit: Callable, error: str
):
    with pytest.raises(WireError, match=error):
        undecoded_from_proto(change(name, edit))


def test_parts_are_all_on_one_device():
    with pytest.raises(WireError, match=r"\$ has parts on cpu and cuda:0; expected one device"):
        undecoded_from_proto(change("sparse_coo", elsewhere))


def test_a_part_that_was_left_out_is_an_error():
    for name in ARRAYS:
        message = values_pb2.Value()
        getattr(message, name).SetInParent()
        for read in (value_from_proto, undecoded_from_proto):
            with pytest.raises(WireError, match=r"\$\.\w+\.dtype"):
                read(message)
