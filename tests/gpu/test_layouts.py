"""Sparse, quantized and nested tensors over CuPy's arrays, in one process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Tensor,
    nested_tensor,
    quantize_per_tensor,
    sparse_coo_tensor,
    sparse_csr_tensor,
)
from opdispatch.arrays import find_layout

pytestmark = pytest.mark.gpu

X = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    ("make", "dense"),
    [
        (lambda: sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], X[X != 0], (2, 3)), Tensor.to_dense),
        (lambda: sparse_csr_tensor([0, 1, 3], [1, 0, 2], X[X != 0], (2, 3)), Tensor.to_dense),
        (lambda: quantize_per_tensor(X, 0.5, 10, "quint8"), Tensor.dequantize),
        (lambda: nested_tensor([X, X[:1]]), lambda x: x.to_padded_tensor(0)),
    ],
    ids=["sparse_coo", "sparse_csr", "quantized", "nested"],
)
def test_a_tensor_of_any_layout_goes_to_a_gpu_and_back(
    make: Callable[[], Tensor], dense: Callable[[Tensor], Tensor]
):
    tensor = make()
    there = tensor.to("cuda")
    assert there.device.startswith("cuda:")
    assert there.layout == tensor.layout
    assert str(there.key_set) == str(tensor.key_set).replace("CPU", "CUDA")
    np.testing.assert_array_equal(dense(there).to("cpu"), dense(tensor))
    back = there.to("cpu")
    layout = find_layout(type(tensor.array))
    assert layout is not None
    for mine, other in zip(layout.parts(tensor.array), layout.parts(back.array), strict=True):
        np.testing.assert_array_equal(mine, other)
    assert layout.facts(tensor.array) == layout.facts(back.array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.bool_])
def test_sparse_tensors_are_made_on_the_gpu(dtype: type):
    there = Tensor(X.astype(dtype)).to("cuda")
    for sparse in (there.to_sparse(), there.to_sparse_csr()):
        assert (sparse.device, sparse.dtype, sparse.shape) == ("cuda:0", dtype, (2, 3))
        np.testing.assert_array_equal(sparse.values().to("cpu"), X[X != 0].astype(dtype))
        np.testing.assert_array_equal(sparse.to_dense().to("cpu"), X.astype(dtype))
    np.testing.assert_array_equal(there.to_sparse().indices().to("cpu"), np.nonzero(X))
    crow_indices = there.to_sparse_csr().crow_indices()
    np.testing.assert_array_equal(crow_indices.to("cpu"), [0, 1, 3])


def test_values_of_one_place_are_added_up():
    places = [[1, 0, 1], [2, 1, 2]]
    there = sparse_coo_tensor(places, np.array([1.0, 2.0, 3.0]), (2, 3)).to("cuda")
    dense = [[0.0, 2.0, 0.0], [0.0, 0.0, 4.0]]
    np.testing.assert_array_equal(there.to_dense().to("cpu"), dense)
    once = there.coalesce()
    np.testing.assert_array_equal(once.indices().to("cpu"), [[0, 1], [1, 2]])
    np.testing.assert_array_equal(once.values().to("cpu"), [2.0, 4.0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: sparse_csr_tensor([0, 1], [0], [1.0], (1, 2**62)).to("cuda").to_dense(),
        lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**32, 2**32)).to("cuda").to_dense(),
        lambda: sparse_coo_tensor([[0], [0]], [1.0], (2**61, 3)).to("cuda").to_sparse_csr(),
    ],
)
def test_layouts_with_too_many_elements_raise_argument_error(make: Callable[[], Tensor]):
    with pytest.raises(ArgumentError, match="more elements than an array can have"):
        make()


def test_cupy_has_no_sparse_integers():
    there = Tensor(X.astype(np.int64)).to("cuda")
    with pytest.raises(ArgumentError, match="Only bool, float32, float64"):
        there.to_sparse()
