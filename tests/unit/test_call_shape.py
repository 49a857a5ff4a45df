"""Which calls the daemon sends the same way."""

from __future__ import annotations

import contextlib

import ml_dtypes
import numpy as np

from opdispatch import Tensor, register_backend
from opdispatch_client.call_shape import call_shape
from tests.simulated_accelerator import Accelerator, AcceleratorArray


def shape(*args: object, **kwargs: object) -> object:
    return call_shape("m::f", args, kwargs)


def test_elements_shapes_and_dtypes_do_not_count():
    assert shape(np.ones(3), by=1) == shape(np.zeros((2, 2), np.int8), by=7)
    assert shape(1) != shape(True) != shape(1.0) != shape("1") != shape(None)
    assert shape([1, 2]) != shape([1.0, 2]) != shape([1, 2, 3])


def test_an_array_without_dimensions_may_be_a_number():
    zero_d = [shape(np.array(value)) for value in (1.0, 1, True, 1j)]
    assert len({*zero_d, shape(np.ones(1))}) == 5
    assert shape(np.array(1.0)) == shape(np.array(2, np.float32))
    assert shape([np.array(1)]) != shape([np.ones(1)])
    assert shape(np.array(1, np.uint64)) is None
    assert shape(np.array(1, ml_dtypes.bfloat16)) is None


def test_a_tensor_of_one_element_may_be_a_number():
    one = [shape(Tensor(np.full((1, 1), value))) for value in (1.0, 1, True, 1j)]
    assert len({*one, shape(Tensor(np.ones(2)))}) == 5
    assert shape(Tensor(np.ones(1))) == shape(Tensor(np.array(2, np.float32)))
    assert shape(Tensor(np.ones(2))) == shape(Tensor(np.zeros((0, 1), int)))


def test_numpy_scalars_are_arrays_without_dimensions_and_dtypes_are_alike():
    assert shape(np.float64(1)) == shape(np.array(1.0)) != shape(np.int64(1))
    assert shape(np.uint64(1)) is None  # which is an int or not by its value
    assert shape(np.float32) == shape(np.dtype("int8")) == shape(float) != shape(1.0)


def test_unusual_arguments_have_none():
    assert shape(np.str_("x")) is None
    assert shape(object()) is None
    assert shape(by=range(3)) is None
    assert shape([1] * 17) is None


def test_call_shapes_differ_by_device_index():
    with contextlib.closing(register_backend(Accelerator())):
        there = [shape(Tensor(AcceleratorArray(np.ones(2), number))) for number in (0, 1, 1)]
    assert None not in there
    assert there[0] != there[1] == there[2]
