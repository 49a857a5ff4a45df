"""The kernels of the library ``array`` for a GPU, as far as they can be looked at without one."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import opdispatch.array_library  # noqa: F401 - its operators
from opdispatch import Tensor, ops
from opdispatch.array_operators import cuda
from opdispatch.array_operators.functions import FUNCTIONS
from opdispatch.array_operators.library_functions import find_function
from opdispatch.errors import DeviceError


@pytest.fixture
def runtime(cupy_stand_in: Any) -> Iterator[Any]:
    cuda._import.cache_clear()
    yield cupy_stand_in.cuda.runtime
    cuda._import.cache_clear()


def test_a_gpu_that_is_not_there_is_an_error_of_the_device(runtime: Any):
    with pytest.raises(DeviceError, match="zeros: there is no device 'cuda:99'"):
        ops.array.zeros([2], device="cuda:99")


def test_cupy_has_a_function_for_every_operator():
    pytest.importorskip("cupy")
    namespace = importlib.import_module("array_api_compat.cupy")
    assert all(callable(find_function(namespace, function)) for function in FUNCTIONS)


def test_what_is_on_the_host_is_not_written_to_from_a_gpu(runtime: Any, cupy_stand_in: Any):
    """It may be among the arguments, as a number, but a kernel there would write to a copy."""
    x, y = Tensor(np.array(1.0)), Tensor(cupy_stand_in.asarray(np.array(2.0)))
    with pytest.raises(DeviceError, match="found at least two devices, cpu and cuda:0!"):
        x[...] = y
    assert x.item() == 1.0
    assert ops.array.copy_(x, y) is x  # which is for that
    assert x.item() == 2.0


def test_nor_is_it_from_a_tensor_without_elements():
    x = Tensor(np.array(1.0))
    with pytest.raises(DeviceError, match="found at least two devices, cpu and meta!"):
        x[...] = Tensor(np.array(2.0)).to("meta")


def test_an_integer_on_a_gpu_is_an_index_though_cupys_arrays_are_none(cupy_stand_in: Any):
    def there(value: Any) -> Tensor:
        return Tensor(cupy_stand_in.asarray(np.array(value)))

    assert "abc"[there(1)] == "b"
    for value in (True, 1.0, [1]):
        with pytest.raises(TypeError, match="only a tensor of one integer"):
            operator.index(there(value))
