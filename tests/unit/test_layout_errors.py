"""Errors for malformed tensors of layouts, and for unsupported uses, in one sentence each."""

import math
import operator
import re

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DeviceMemoryError,
    NestedArray,
    NoKernelError,
    QuantizedArray,
    Tensor,
    nested_tensor,
    quantize_per_tensor,
    sparse_coo_tensor,
    sparse_csr_tensor,
)
from opdispatch import array_api as xp
from opdispatch.arrays import copy_of, device_of, find_layout
from tests.unit.layout_tensors import ALL, DENSE, coo, csr, nested, quantized

MANY = np.broadcast_to(np.uint8(1), (2**50,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sparse_coo_tensor([[0, 3]], [1, 2], (3,)), r"indices\[0\] has index 3"),
        (lambda: sparse_coo_tensor([[0, -1]], [1, 2], (3,)), r"indices\[0\] has index -1"),
        (lambda: sparse_coo_tensor([[0, 1]], [1], (3,)), r"indices has shape \[1, 2\]; .* \[1, 1]"),
        (lambda: sparse_coo_tensor([0, 1], [1, 2], (3,)), r"indices has shape \[2\]"),
        (lambda: sparse_coo_tensor([0, 1], [1, 2]), "do not determine the size"),
        (lambda: sparse_coo_tensor([[0.0, 1.0]], [1, 2], (3,)), "indices has dtype float64"),
        (lambda: sparse_coo_tensor([[0]], [[1]], (3,)), r"values has shape \[1, 1\]"),
        (lambda: sparse_coo_tensor([[0]], [1], (-3,)), r"shape is \[-3\]"),
        *(
            (lambda size=size: sparse_coo_tensor([[0]], [1], size), "size is .*; expected integers")
            for size in (("n",), (3.7,), (3.0,), ("3",), "3", (math.inf,), (1j,), (None,), 3)
        ),
        (lambda: sparse_csr_tensor([0, 1], [0], [1], (1, 3.7)), "size is .*; expected integers"),
        *(
            (lambda size=size: sparse_coo_tensor([[0]], [1], size), "no extent is more than")
            for size in ((2**63,), (10**400,))
        ),
        *(
            (lambda place=place: sparse_coo_tensor([[place]], [1]), "indices has dtype")
            for place in (math.nan, math.inf, 0.5, 1j, "a", None)
        ),
        (lambda: sparse_csr_tensor([0, 1], [math.nan], [1]), "col_indices has dtype float64"),
        (
            lambda: sparse_coo_tensor([[0]], np.ones(1, np.float16), (3,)),
            "values has dtype float16",
        ),
        (
            lambda: sparse_csr_tensor([0, 2], [0, 1], [1, 2], (2, 2)),
            r"crow_indices has shape \[2\]",
        ),
        (lambda: sparse_csr_tensor([0, 1, 1], [0, 1], [1, 2], (2, 2)), "crow_indices ends with 1"),
        (
            lambda: sparse_csr_tensor([1, 1, 2], [0, 1], [1, 2], (2, 2)),
            "crow_indices begins with 1",
        ),
        (
            lambda: sparse_csr_tensor([0, 2, 1, 2], [0, 1], [1, 2], (3, 2)),
            "crow_indices decreases from 2 to 1 at index 2",
        ),
        (lambda: sparse_csr_tensor([0, 1], [2], [1], (1, 2)), "col_indices has index 2"),
        (lambda: sparse_csr_tensor([0, 1], [0, 0], [1], (1, 2)), r"col_indices has shape \[2\]"),
        (lambda: sparse_csr_tensor([0, 1], [0], [1], (1,)), "expected two dimensions"),
        (lambda: sparse_csr_tensor([], [], []), r"crow_indices has shape \[0\]"),
        (lambda: quantize_per_tensor(DENSE, 0, 0, "quint8"), "scale is 0.0; expected a finite"),
        (lambda: quantize_per_tensor(DENSE, float("nan"), 0, "quint8"), "scale is nan"),
        (lambda: quantize_per_tensor(DENSE, 1e-60, 0, "quint8"), "scale is 1e-60; .* in float32"),
        *(
            (
                lambda scale=scale: quantize_per_tensor(DENSE, scale, 0, "quint8"),
                "expected a number",
            )
            for scale in ("x", "1", b"1", 1j, np.complex64(1 + 2j), 10**400, None, np.ones(2))
        ),
        (lambda: nested_tensor(3), "tensor_list is 3; expected a list of arrays"),
        (lambda: nested_tensor(np.array(3)), r"tensor_list is array\(3\); expected a list"),
        (lambda: nested_tensor(Tensor(np.array(3))), r"tensor_list is Tensor\(.*; expected a list"),
        (lambda: quantize_per_tensor(DENSE, 1, 256, "quint8"), "zero_point is 256; .* 0 to 255"),
        (lambda: quantize_per_tensor(DENSE, 1, 0, "float32"), "no quantized dtype 'float32'"),
        (lambda: quantize_per_tensor(DENSE, 1, 0, object()), "no quantized dtype"),
        (lambda: quantize_per_tensor(DENSE * 1j, 1, 0, "qint8"), "dtype complex128 cannot be"),
        (lambda: quantize_per_tensor(coo(), 1, 0, "qint8"), "a sparse_coo tensor cannot be a part"),
        (lambda: QuantizedArray(DENSE, 1, 0), "int_repr has dtype float64"),
        (lambda: nested_tensor([]), "expected at least one"),
        (lambda: nested_tensor([1.0]), "array 0 has no dimension"),
        (lambda: nested_tensor([np.ones(2), np.ones((1, 2))]), r"array 1 .* \[1, 2\]; .* \[any\]"),
        (lambda: nested_tensor([np.ones(2), np.ones(2, int)]), "array 1 has dtype int64"),
        (lambda: nested_tensor([[[1], [1, 2]]]), "an argument is not an array"),
        (lambda: NestedArray(np.ones(3), np.array([0, 2, 1, 3])), "offsets decreases from 2 to 1"),
        (lambda: NestedArray(np.ones(3), np.array([0, 4])), "offsets ends with 4; expected 3"),
        (lambda: NestedArray(np.ones(3), np.array([-1, 3])), "offsets begins with -1"),
        (lambda: NestedArray(np.ones(3), np.array([], int)), "offsets is empty"),
        (lambda: NestedArray(np.ones(()), np.array([0])), "values has no dimension"),
        (lambda: NestedArray([1, 2], np.array([0, 2])), "values is of type list; expected a dense"),
        (lambda: NestedArray(np.ones(2), [0, 2]), "offsets is of type list"),
        (lambda: NestedArray(Tensor(np.ones(2)), np.array([0, 2])), "values is of type Tensor"),
        (lambda: NestedArray(coo().array, np.array([0, 2])), "values is of type coo_array"),
        (lambda: QuantizedArray([1], 1, 0), "int_repr is of type list"),
        (lambda: QuantizedArray(np.ones(2, np.uint8), 10**400, 0), "scale is 10{400} and zero"),
    ],
)
def test_parts_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        wrong()


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        (csr, lambda t: t.indices(), "indices requires a sparse_coo tensor; .* sparse_csr"),
        (coo, lambda t: t.crow_indices(), "requires a sparse_csr tensor; this one is sparse_coo"),
        (quantized, lambda t: t.values(), "requires a sparse_coo or sparse_csr or nested tensor"),
        (coo, lambda t: t.int_repr(), "requires a quantized tensor"),
        (nested, lambda t: t.q_scale(), "requires a quantized tensor; this one is nested"),
        (coo, lambda t: t.q_zero_point(), "requires a quantized tensor"),
        (coo, lambda t: t.offsets(), "requires a nested tensor"),
        (coo, lambda t: t.to_padded_tensor(0), "requires a nested tensor"),
        (csr, lambda t: t.coalesce(), "requires a sparse_coo tensor"),
        (coo, lambda t: t.unbind(2), "no items to unbind along dimension 2"),
        (nested, lambda t: t.unbind(1), "unbound along dimension 0, and not 1"),
        (csr, lambda t: t._values(), "_values requires a sparse_coo tensor; .* sparse_csr"),
        (coo, lambda t: t.dequantize(), "cannot be dequantized"),
        (nested, lambda t: t.to_dense(), r"use unbind\(\) or to_padded_tensor"),
        (quantized, lambda t: t.to_sparse(), "cannot be made sparse"),
        (nested, lambda t: t.to_sparse_csr(), "cannot be made sparse"),
        (lambda: Tensor(DENSE), lambda t: t.int_repr(), "; this one is dense"),
        (lambda: Tensor(DENSE[0]), lambda t: t.to_sparse_csr(), "needs two dimensions"),
        (lambda: Tensor(np.float64(1)), lambda t: t.to_sparse(), "at least one dimension"),
        (lambda: Tensor(np.float64(1)), lambda t: t.unbind(), "no items to unbind"),
        (lambda: Tensor(DENSE[0]).to_sparse(), lambda t: t.to_sparse_csr(), "two dimensions"),
        *((make, np.asarray, "cannot have its elements in one array") for make in ALL),
        *(
            (make, read, r"tensor of shape \[2, (3|None, 3)\] is neither a number")
            for make in ALL
            for read in (bool, int, float, complex, operator.index, Tensor.item)
        ),
        *(
            (
                lambda: nested_tensor([np.ones(2, np.int8), np.ones(1, np.int8)]),
                lambda t, padding=padding: t.to_padded_tensor(padding),
                re.escape(f"padding is {padding!r}; expected a number of int8"),
            )
            for padding in (0.5, math.nan, math.inf, 128, 1e300, 10**400, 1j, None, "x", "1")
        ),
        *(
            (
                lambda dtype=dtype: nested_tensor([np.ones(2, dtype), np.ones(1, dtype)]),
                lambda t, padding=padding: t.to_padded_tensor(padding),
                re.escape(f"padding is {padding!r}; expected a number of {dtype}"),
            )
            for dtype, paddings in {
                "bool": (2, -1, 0.5, 2**70, 1j),
                "uint8": (-1, 256),
                "float16": (1e5, 1 + 0j, None, "1"),
                "float32": (1j, None, 1e39, 10**400, np.array([1, 2]), [1]),
                "complex64": (None, 1e39, 1e39j, "1"),
            }.items()
            for padding in paddings
        ),
        (lambda: quantized().array, np.asarray, "is not dense"),
        (lambda: nested().array, np.asarray, "is not dense"),
        (
            lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**40, 2**40)),
            lambda t: t.to_dense(),
            "a dense array of shape .* cannot be made",
        ),
        (
            lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**61, 3)),
            lambda t: t.to_sparse_csr(),
            "cannot be made .it would have more elements than an array can have",
        ),
        (
            lambda: NestedArray(MANY, np.array([0] * 2**14 + [2**50])),
            lambda a: a.to_padded(0),
            r"of shape \[16384, 1125899906842624\] cannot be made .it would have more elements",
        ),
    ],
)
def test_a_method_of_another_layout_is_refused_in_words(make, call, message):
    with pytest.raises(ArgumentError, match=message):
        call(make())


def test_a_function_of_several_arrays_has_no_kernel_for_other_layouts():
    for tensor in (nested_tensor([np.ones(2), np.ones(3)]), Tensor(coo())):
        for call in (xp.broadcast_arrays, xp.add):
            with pytest.raises(NoKernelError, match="has no kernel for arguments from the"):
                call(tensor, tensor)


def test_layout_without_its_parts_raises_on_every_access():
    """SciPy's arrays can be changed, and a kernel may change what it returns."""
    uneven, without_values = coo().array, csr().array
    uneven.coords = (uneven.coords[0], uneven.coords[1][:2])
    without_values.data = None
    for read in (Tensor.indices, Tensor.values, repr):
        with pytest.raises(ArgumentError, match="one array of all indices cannot be made"):
            read(Tensor(uneven))
    for read in (device_of, copy_of, find_layout(type(without_values)).nbytes):
        with pytest.raises(ArgumentError, match="values is of type NoneType; expected a dense"):
            read(without_values)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**30, 2**22)).to_dense(),
        lambda: sparse_csr_tensor([0, 1], [0], [1.0], (1, 2**48)).to_dense(),
        lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**48, 3)).to_sparse_csr(),
        lambda: NestedArray(MANY, np.array([0] * 200 + [2**50])).to_padded(0),
        lambda: nested_tensor([MANY]),
        lambda: QuantizedArray(MANY, 1.0, 0).dequantize(),
        lambda: quantize_per_tensor(MANY, 1.0, 0, "quint8"),
    ],
)
def test_allocation_failure_raises_device_memory_error(make):
    with pytest.raises(DeviceMemoryError, match="there is no room on 'cpu'"):
        make()


def test_padding_is_any_number_that_the_elements_can_be():
    for dtype, padding in (
        ("bool", 1.0),
        ("uint64", 2**64 - 1),
        ("int64", np.float64(-2)),
        ("float16", math.inf),
        ("float32", 2**70),
        ("float64", Tensor(np.array(0.5))),
        ("complex64", 1 + 2j),
    ):
        padded = nested_tensor([np.zeros(2, dtype), np.zeros(1, dtype)]).to_padded_tensor(padding)
        assert padded.dtype == dtype
        assert np.asarray(padded)[1, 1] == np.asarray(padding)
