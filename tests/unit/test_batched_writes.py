"""Writes to the samples of a batch, which a tensor without a batch has no room for."""

import numpy as np
import pytest

from opdispatch import Tensor, TransformError, vmap

X = np.arange(6.0).reshape(3, 2)
ROW = np.array([1.0, 10.0])


def test_writing_samples_to_what_is_the_same_for_all():
    same = Tensor(np.zeros(2))

    def write(a):
        same[0] = a[0]
        return same

    with pytest.raises(TransformError, match=r"setitem_.Tensor writes to its argument 'x', which"):
        vmap(write)(X)
    np.testing.assert_array_equal(same, [0, 0])


def test_writing_to_samples():
    def write(a, b):
        b[0] = 7.0
        part = a[1:]
        a[0] = b[1] * part[0]
        part[...] = -part
        a += 1
        return a

    x, y = Tensor(X.copy()), Tensor(ROW + np.zeros((3, 1)))
    got = vmap(write)(x, y)
    want = np.stack([X[:, 1] * 10 + 1, 1 - X[:, 1]], axis=1)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(x, want)  # samples are views of the batch
    np.testing.assert_array_equal(y[:, 0], [7, 7, 7])
