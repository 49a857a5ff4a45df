"""Whether elements of one array share memory."""

import numpy as np
import pytest

from opdispatch.arrays.memory_overlap import has_internal_overlap


@pytest.mark.parametrize(
    ("array", "overlaps"),
    [
        (np.zeros((2, 3)), False),
        (np.zeros((2, 3)).T, False),
        (np.broadcast_to(np.zeros(3), (2, 3)), True),
        (np.broadcast_to(np.zeros(1), (1, 1)), False),
        (np.broadcast_to(np.zeros((1, 0)), (2, 0)), False),
        (np.broadcast_to(np.float64(1), ()), False),
    ],
)
def test_only_a_repeated_dimension_with_elements_overlaps(array, overlaps):
    assert has_internal_overlap(array.shape, array.strides) is overlaps
