"""The kernels of the library ``array`` for a GPU, as far as they can be looked at without one."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opdispatch.array_library  # noqa: F401 - its operators
from opdispatch import Tensor, ops
from opdispatch.errors import ArgumentError, DeviceError, DeviceMemoryError
from opdispatch.native.array.operators import cuda
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.library_functions import find_function


@pytest.fixture
def runtime(cupy_stand_in: Any) -> Iterator[Any]:
    cuda._import.cache_clear()
    yield cupy_stand_in.cuda.runtime
    cuda._import.cache_clear()


def test_a_gpu_that_is_not_there_is_an_error_of_the_device(runtime: Any):
    with pytest.raises(DeviceError, match="zeros: there is no device 'cuda:99'"):
        ops.array.zeros([2], device="cuda:99")


def test_memory_error_of_thrust_becomes_device_memory_error(runtime: Any, cupy_stand_in: Any):
    def fail(x: Any) -> Any:
        raise MemoryError("std::bad_alloc")

    kernel = cuda.make_cuda_kernel(FUNCTION_OF["exp"], fail)
    with pytest.raises(DeviceMemoryError, match="there is no room for more bytes on cuda:0: "):
        kernel(cupy_stand_in.asarray(np.ones(2)))


TALL, FLAT = (np.broadcast_to(np.float64(0), shape) for shape in ((2**30, 1), (1, 2**30)))
EMPTY = np.zeros((2**40, 0, 1))
TOO_LARGE: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "zeros": (([2**32, 2**32],), {}),  # of which CuPy counts no elements
    "empty": (([2**61 + 1],), {}),  # of 8 bytes
    "eye": ((2**30,), {}),
    "add.Tensor": ((TALL, FLAT), {}),
    "matmul": ((TALL, FLAT), {}),
    "linalg_svd": ((TALL,), {}),
    "concat": (([np.broadcast_to(FLAT[0], (2**28, 2**30))] * 3,), {}),
    "meshgrid": (([FLAT[0]] * 2,), {}),
    "broadcast_to": ((FLAT, [2**62, 2**30]), {}),
    "fft_fft": ((FLAT,), {"n": 2**60}),
    "multiply.Tensor": ((EMPTY, EMPTY.T), {}),  # of which sums would have too many
}


@pytest.mark.parametrize("operator", TOO_LARGE)
def test_results_with_too_many_elements_raise_argument_error(
    runtime: Any, cupy_stand_in: Any, operator: str
):
    """CuPy would take no memory for it, or a little, and write beyond."""

    def there(value: Any) -> Any:
        if isinstance(value, list):
            return [there(each) for each in value]
        return cupy_stand_in.ndarray(value) if isinstance(value, np.ndarray) else value

    args, kwargs = TOO_LARGE[operator]
    kernel = cuda.make_cuda_kernel(FUNCTION_OF[operator], lambda *args, **kwargs: 1 // 0)
    with pytest.raises(ArgumentError, match=r"makes more elements than an array can have, of sha"):
        kernel(*there(list(args)), **kwargs)


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("exp", (TALL,)),
        ("sum", (TALL,)),
        ("zeros", ([2**29, 2**29],)),  # there is no memory for it, which CuPy says
        ("nonzero", (TALL,)),  # as many as there are
        ("add.Tensor", (TALL, np.zeros((3, 5)))),  # do not go together
    ],
)
def test_sizes_within_the_limits_are_left_to_cupy(
    runtime: Any, cupy_stand_in: Any, operator: str, args: tuple[Any, ...]
):
    found = cupy_stand_in.asarray(1.0)
    kernel = cuda.make_cuda_kernel(FUNCTION_OF[operator], lambda *args, **kwargs: found)
    there = (cupy_stand_in.ndarray(x) if isinstance(x, np.ndarray) else x for x in args)
    assert kernel(*there) is found


def test_cupy_has_a_function_for_every_operator():
    pytest.importorskip("cupy")
    namespace = importlib.import_module("array_api_compat.cupy")
    assert all(callable(find_function(namespace, function)) for function in FUNCTIONS)


def test_setitem_from_gpu_to_host_raises_device_error(runtime: Any, cupy_stand_in: Any):
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


# -- without looking for the device ----------------------------------------------------------------


class Array:
    """As much of ``cupy.ndarray`` as is looked at."""

    def __init__(self, device: int = 0, size: int = 1) -> None:
        self.data, self.size = SimpleNamespace(device_id=device), size


class OutOfMemoryError(MemoryError):
    """As ``cupy.cuda.memory.OutOfMemoryError``."""


class CUDARuntimeError(RuntimeError):
    """As ``cupy.cuda.runtime.CUDARuntimeError``."""


class CUBLASError(RuntimeError):
    """As ``cupy_backends.cuda.libs.cublas.CUBLASError``."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let CuPy find that many GPUs, of which the first is the current one."""

    def find(count: int) -> None:
        runtime = SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=lambda: count,
            getDevice=lambda: 0,
        )
        memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
        cupy = SimpleNamespace(ndarray=Array, cuda=SimpleNamespace(runtime=runtime, memory=memory))
        monkeypatch.setattr(cuda, "_import", lambda name: cupy)

    return find


FUNCTION_OF = {function.operator: function for function in FUNCTIONS}
CALLS_OF_SHAPES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "exp": ((Array(),), {}),
    "add.Tensor": ((Array(), Array()), {}),
    "add.Scalar": ((Array(), 2.0), {}),
    "reshape": ((Array(), (2, 2)), {"copy": None}),
    "sum": ((Array(),), {"axis": 0, "dtype": None, "keepdims": False}),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("operator", CALLS_OF_SHAPES)
def test_arrays_of_the_current_gpu_go_to_cupys_function_at_once(
    gpus: Any, operator: str, count: int
):
    gpus(count)
    args, kwargs = CALLS_OF_SHAPES[operator]
    call = cuda._direct(
        FUNCTION_OF[operator], lambda *args, **kwargs: ("CuPy", args, kwargs), lambda *args: 1 // 0
    )
    assert call is not None
    assert call(*args, **kwargs) == ("CuPy", args, kwargs)


@pytest.mark.parametrize("operator", CALLS_OF_SHAPES)
def test_others_are_looked_at(gpus: Any, operator: str):
    args, kwargs = CALLS_OF_SHAPES[operator]
    others = [(2, Array(1))]
    # Sizes are checked there: what is large may make something larger, and what has no elements.
    others += [(1, other) for other in (np.array(1.0), Array(size=2**57), Array(size=0))]
    for count, other in (*others, (2, np.array(1.0))):
        gpus(count)
        call = cuda._direct(
            FUNCTION_OF[operator], lambda *args, **kwargs: 1 // 0, lambda *args, **kwargs: args
        )
        assert call is not None
        assert call(other, *args[1:], **kwargs) == (other, *args[1:])


@pytest.mark.parametrize("operator", ["exp", "add.Tensor", "reshape"])
@pytest.mark.parametrize("failure", [OutOfMemoryError, CUDARuntimeError, CUBLASError])
def test_a_failure_of_the_gpu_is_explained_by_the_call_that_looks(
    gpus: Any, operator: str, failure: type[Exception]
):
    gpus(1)

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise failure

    call = cuda._direct(FUNCTION_OF[operator], fail, lambda *args, **kwargs: "explained")
    assert call is not None
    args, kwargs = CALLS_OF_SHAPES[operator]
    assert call(*args, **kwargs) == "explained"


@pytest.mark.parametrize(
    "operator",
    [
        *("concat", "zeros", "zeros_like", "astype", "linalg_inv", "searchsorted", "broadcast_to"),
        *("repeat", "tile", "fft_fft"),
    ],
)
def test_lists_new_arrays_optional_ones_and_those_that_grow_are_looked_at(gpus: Any, operator: str):
    gpus(1)
    assert cuda._direct(FUNCTION_OF[operator], lambda: None, lambda: None) is None
