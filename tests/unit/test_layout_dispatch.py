"""Calls with tensors of other layouts go to the kernels for their keys."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse

from opdispatch import (
    Dispatcher,
    DispatchKey,
    Library,
    NestedArray,
    NoKernelError,
    QuantizedArray,
    Tensor,
    fallthrough_kernel,
    nested_tensor,
    quantize_per_tensor,
    register_backend,
    sparse_coo_tensor,
    sparse_csr_tensor,
)
from opdispatch.arrays.kernel_block import device_among
from opdispatch.library import infer_schema
from opdispatch.library.ops import Ops
from tests.simulated_accelerator import Accelerator

KEYS = ("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU")
X = np.eye(2)
TENSORS = {
    "CPU": Tensor(X),
    "SparseCPU": sparse_coo_tensor([[0], [1]], [1.0], (2, 2)),
    "SparseCsrCPU": sparse_csr_tensor([0, 1, 1], [1], [1.0], (2, 2)),
    "QuantizedCPU": quantize_per_tensor(X, 0.1, 0, "qint8"),
    "NestedTensorCPU": nested_tensor([X, X]),
}


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    made = Dispatcher()
    with Library("layouts", "DEF", dispatcher=made) as lib:
        lib.define("which(Tensor x) -> str")
        lib.define("first(Tensor[] x) -> str")
        lib.define("same(Tensor x) -> Tensor")
        lib.define("dense(Tensor x) -> Tensor")
        for key in KEYS:
            lib.impl("which", lambda x, key=key: key, key)
            lib.impl("first", lambda x, key=key: key, key)
            lib.impl("same", lambda x: x, key)
        # As in PyTorch, autograd has no fallback for nested tensors.
        for name in ("which", "first", "same"):
            lib.impl(name, fallthrough_kernel, "AutogradNestedTensor")
        lib.impl("dense", lambda x: x, "CPU")
        lib.impl("dense", lambda x: x, "CUDA")
        yield made


@pytest.mark.parametrize("key", KEYS)
def test_the_kernel_for_the_layout_is_called(dispatcher, key):
    ops = Ops(dispatcher)
    tensor = TENSORS[key]
    for _ in range(2):  # the second time by what was generated for the first
        assert ops.layouts.which(tensor) == key
        assert ops.layouts.which(tensor.array) == key
        assert ops.layouts.first([tensor, tensor.array]) == key
        assert ops.layouts.same(tensor) is tensor
        assert ops.layouts.same(tensor.array) is tensor.array


def test_of_several_layouts_the_one_with_the_highest_key_is_served(dispatcher):
    ops = Ops(dispatcher)
    assert ops.layouts.first([TENSORS["CPU"], TENSORS["SparseCPU"]]) == "SparseCPU"
    assert ops.layouts.first([X, TENSORS["QuantizedCPU"].array]) == "QuantizedCPU"


@pytest.mark.parametrize("key", KEYS[1:4])
def test_without_a_kernel_for_the_layout_the_error_lists_those_there_are(dispatcher, key):
    for tensor in (TENSORS[key], TENSORS[key].array):
        with pytest.raises(NoKernelError, match=rf"{key}") as caught:
            Ops(dispatcher).layouts.dense(tensor)
        assert "CPU" in str(caught.value)
        assert "CUDA" in str(caught.value)


def test_autograd_of_nested_tensors_has_a_key_of_its_own_and_no_fallback(dispatcher):
    with pytest.raises(NoKernelError, match="from the AutogradNestedTensor backend"):
        Ops(dispatcher).layouts.dense(TENSORS["NestedTensorCPU"])
    with pytest.raises(NoKernelError, match="from the NestedTensorCPU backend"):
        Ops(dispatcher).layouts.dense(TENSORS["NestedTensorCPU"].array)
    with Library("layouts", "IMPL", dispatcher=dispatcher) as lib:
        lib.impl("which", lambda x: "autograd", "AutogradNestedTensor")
        assert Ops(dispatcher).layouts.which(TENSORS["NestedTensorCPU"]) == "autograd"
        assert Ops(dispatcher).layouts.which(TENSORS["SparseCPU"]) == "SparseCPU"


@pytest.mark.parametrize(
    "annotation", [scipy.sparse.coo_array, scipy.sparse.csr_matrix, QuantizedArray, NestedArray]
)
def test_annotations_with_arrays_of_layouts_are_tensors(annotation):
    def f(x):
        return x

    f.__annotations__ = {"x": annotation, "return": annotation}
    assert str(infer_schema(f, mutates_args=())) == "(Tensor x) -> Tensor"


def test_keys_that_are_given_override_those_of_the_layout():
    keys = TENSORS["CPU"].key_set
    tensor = Tensor(TENSORS["SparseCPU"].array, keys=keys)
    assert tensor.key_set == keys
    assert tensor.is_sparse
    assert DispatchKey.SparseCPU not in tensor.key_set


def test_a_kernel_runs_on_the_device_of_its_arguments_parts():
    accelerator = Accelerator()
    registration = register_backend(accelerator)
    try:
        there = quantize_per_tensor(X, 0.5, 1, "qint8").to("privateuseone:1")
        for value in (there, there.array, [X, there]):
            assert device_among(accelerator, [X, value]) == "privateuseone:1"
        assert device_among(accelerator, [TENSORS["QuantizedCPU"], X]) == ""
    finally:
        registration.close()
