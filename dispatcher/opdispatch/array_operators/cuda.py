"""The kernels for ``CUDA``: CuPy's functions, imported when one is called first."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from opdispatch.array_operators.functions import ArrayFunction
from opdispatch.array_operators.kernels import Kernel, check_devices, find_function, make_kernel
from opdispatch.arrays import split_device
from opdispatch.errors import DeviceError


def make_cuda_kernel(function: ArrayFunction) -> Kernel:
    """The kernel of an operator for arrays on a GPU.

    Arrays of the host may be among them if they have one element and no dimension.
    """
    name = function.operator.partition(".")[0]

    @functools.cache
    def find() -> Kernel:
        return find_function(_import("array_api_compat.cupy"), function)

    def call(*args: Any, **kwargs: Any) -> Any:
        cupy = _import("cupy")
        devices = {f"cuda:{array.device.id}" for array in _arrays(args, kwargs, cupy.ndarray)}
        host = [array for array in _arrays(args, kwargs, (np.ndarray, np.generic)) if array.ndim]
        check_devices(name, [*devices, *("cpu" for _ in host)])
        asked = kwargs.get("device")
        place = asked if asked is not None else next(iter(devices), None)
        number = split_device(str(place))[1] if place is not None else None
        if "device" in kwargs:
            kwargs["device"] = None
        with cupy.cuda.Device(number) if number is not None else nullcontext():
            args = tuple(_on_gpu(each, cupy) for each in args)
            return find()(*args, **{key: _on_gpu(each, cupy) for key, each in kwargs.items()})

    return make_kernel(function, call)


@functools.cache
def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"arrays on a GPU need CuPy, which cannot be imported: {error}",
            hint="install cupy-cuda12x or cupy-cuda13x, whichever fits the driver",
        ) from error


def _arrays(args: Any, kwargs: dict[str, Any], cls: Any) -> Iterator[Any]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, cls):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, cls))


def _on_gpu(value: Any, cupy: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cupy.asarray(value)
    if isinstance(value, list):
        return [_on_gpu(each, cupy) for each in value]
    return value
