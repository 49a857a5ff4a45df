"""Operators without views and writes under ``vmap``."""

import numpy as np
import pytest

from opdispatch import BatchingFallbackWarning, Tensor, ops, vmap
from opdispatch import array_api as xp

pytestmark = pytest.mark.filterwarnings(f"error::opdispatch.{BatchingFallbackWarning.__name__}")

X = np.arange(24.0).reshape(2, 3, 4)
OTHER = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
COMPLEX = X + 1j * X[::-1]
PLACES = np.array([[0, 2], [1, 1]])
FIRST_ROW = ([0], [None], [None])


def set_row(x, value):
    return ops.array.setitem(x, *FIRST_ROW, [], value)


def set_places(x, places, value):
    return ops.array.setitem(x, [None], [None], [None], [places], value)


CASES = {
    "setitem.Scalar": (lambda x: ops.array.setitem(x, *FIRST_ROW, [], 7.0), X),
    "setitem.Tensor": (set_row, X, OTHER),
    "places": (set_places, X, PLACES, X[:, :2]),
    "copy": (ops.array.copy, X, X + 1),
    "real_scatter": (ops.array.real_scatter, COMPLEX, X + 1),
    "imag_scatter": (ops.array.imag_scatter, COMPLEX, X + 1),
    "getitem_copy": (lambda x: ops.array.getitem_copy(x, *FIRST_ROW), X),
    "permute_dims_copy": (lambda x: ops.array.permute_dims_copy(x, [1, 0]), X),
    "reshape_copy": (lambda x: ops.array.reshape_copy(x, [2, 6]), X),
    "unstack_copy": (lambda x: ops.array.unstack_copy(x)[1], X),
    "linalg_diagonal_copy": (ops.array.linalg_diagonal_copy, X),
    "imag_copy": (ops.array.imag_copy, COMPLEX),
    "conjugate of": (lambda x: xp.imag(x.conj()).resolve_neg(), COMPLEX),
}


@pytest.mark.parametrize("name", CASES)
def test_each_sample_is_as_if_it_were_alone(name):
    function, *batches = CASES[name]
    for alone in [None, *range(len(batches))] if len(batches) > 1 else [None]:
        # One of them is batched, or all are.
        in_dims = tuple(0 if alone in (None, place) else None for place in range(len(batches)))
        tensors = [
            Tensor(each if dim == 0 else each[0])
            for each, dim in zip(batches, in_dims, strict=True)
        ]
        want = [
            np.asarray(
                function(
                    *(t if dim is None else t[n] for t, dim in zip(tensors, in_dims, strict=True))
                )
            )
            for n in range(2)
        ]
        got = vmap(function, in_dims=in_dims)(*tensors)
        np.testing.assert_array_equal(np.asarray(got), np.stack(want))


def test_copies_into_samples():
    target = Tensor(np.zeros((2, 3)))
    vmap(ops.array.copy_, in_dims=(0, None))(target, Tensor(np.arange(3.0)))
    np.testing.assert_array_equal(target, [[0, 1, 2]] * 2)
