"""The bytes of the elements of tensors, in values of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdispatch import Tensor, register_backend
from opdispatch_wire.nesting_limits import MAX_VALUES
from opdispatch_wire.tensor_bytes import MOST_LISTS, count_bytes
from tests.simulated_accelerator import Accelerator

X = np.ones(3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (X, 24),
        (Tensor(X), 24),
        (np.float32(1), 4),
        ([X, (X, 1)], 48),
        ({"a": X, "b": {"c": Tensor(X)}}, 48),
        (np.broadcast_to(X, (2, 3)), 48),
        (None, 0),
        (True, 0),
        (1, 0),
        (1.0, 0),
        (1j, 0),
        ("text", 0),
        (np.dtype(float), 0),
        (..., 0),
    ],
    ids=repr,
)
def test_only_elements_of_tensors_count(value: Any, expected: int):
    assert count_bytes([value]) == expected
    assert count_bytes([value, value]) == 2 * expected


def test_lists_that_lie_in_themselves_or_share_their_parts_are_not_walked_to_their_end():
    assert MOST_LISTS == MAX_VALUES
    endless: list[Any] = [X]
    endless.append(endless)
    assert count_bytes(endless) == 24 * (MOST_LISTS + 1)
    shared: Any = X
    for _ in range(31):
        shared = [shared, shared]
    assert count_bytes([shared]) < 48 * (MOST_LISTS + 1)


def test_of_a_sparse_tensor_all_parts_count():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    array = sparse.csr_array(np.diag([1.0, 2.0]))
    parts = array.data.nbytes + array.indices.nbytes + array.indptr.nbytes
    assert count_bytes([array]) == parts > 0


def test_of_a_broken_tensor_nothing_counts():
    sparse = pytest.importorskip("scipy.sparse", reason="scipy is not installed")
    array = sparse.csr_array(np.diag([1.0, 2.0]))
    array.indices = [0, 1]
    assert count_bytes([X, array]) == X.nbytes


def test_of_a_backends_arrays_shape_and_dtype_count():
    registration = register_backend(Accelerator())
    try:
        there = Tensor(X).to("privateuseone:1")
        assert not hasattr(there.array, "nbytes")
        assert count_bytes([there]) == X.nbytes
    finally:
        registration.close()
