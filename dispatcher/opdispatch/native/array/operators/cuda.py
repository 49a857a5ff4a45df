"""Kernels for ``CUDA``: CuPy's functions, imported on the first call."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from opdispatch.arrays import common_device, explain_device_error, split_device
from opdispatch.arrays.cupy_backend import array_of_cupy
from opdispatch.arrays.cupy_errors import INSTALL_HINT, memory_error
from opdispatch.arrays.devices import device_mismatch
from opdispatch.errors import DeviceError
from opdispatch.native.array.operators.cupy_functions import find_cupy_function
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.gpu_sizes import LARGE, make_size_check
from opdispatch.native.array.operators.half_precision import (
    FACTORIZATIONS,
    in_float32_for_cupy,
    keeping_dtype,
    refusing_16_bits,
)
from opdispatch.native.array.operators.kernels import make_kernel

_INVALID_DEVICE = 101  # driver_types.h, cudaErrorInvalidDevice
# Operators whose result size depends on an argument that is not an array.
_ENLARGING = (
    *("broadcast_to", "repeat", "tile", "fft_fft", "fft_fftn", "fft_hfft", "fft_ifft", "fft_ifftn"),
    *("fft_ihfft", "fft_irfft", "fft_irfftn", "fft_rfft", "fft_rfftn"),
)
# Base classes of CuPy's errors: of CUDA and its libraries, out of memory, missing CUDA libraries.
_FAILURES = (RuntimeError, MemoryError, ImportError)


def make_cuda_kernel(
    function: ArrayFunction,
    own: Callable[..., Any] | None = None,
    on_meta: Callable[..., Any] | None = None,
) -> Kernel:
    """Return the kernel of an operator for arrays on a GPU: the standard's function, or ``own``.

    ``on_meta`` computes result shapes for an operator that ``META_FUNCTIONS`` lacks.

    Host arrays are accepted if they are 0-d or indices, except as the target of a write, because
    the GPU would write to a copy. Raises DeviceError for other mixtures of devices.
    """
    name, free = f"array::{function.operator}", function.places_of_indices
    is_write = function.schema.is_mutable  # writes to its first argument
    check_sizes = None if is_write else make_size_check(function, on_meta)

    @functools.cache
    def find() -> Kernel:
        if own is not None:
            return own
        found = find_cupy_function(_import("array_api_compat.cupy"), function)
        return _checked(found) if function.schema.name.name in FACTORIZATIONS else found

    def call(*args: Any, **kwargs: Any) -> Any:
        cupy = _import("cupy")
        bound = (each for n, each in enumerate(args) if n not in free)
        found = common_device(name, *bound, *kwargs.values())
        if is_write and isinstance(args[0], np.ndarray):
            raise device_mismatch(name, "cpu", str(found))
        asked = kwargs.get("device")
        place = found if asked is None else str(asked)
        number = None if place is None else split_device(place)[1]
        if "device" in kwargs:
            kwargs["device"] = None
        if check_sizes is not None:
            check_sizes(args, kwargs)
        try:
            with cupy.cuda.Device(number) if number is not None else nullcontext():
                args = tuple(_on_gpu(each, cupy) for each in args)
                return find()(*args, **{key: _on_gpu(each, cupy) for key, each in kwargs.items()})
        except _FAILURES as error:
            if getattr(error, "status", None) == _INVALID_DEVICE:
                raise DeviceError(f"{name}: there is no device 'cuda:{number}'") from error
            if type(error) is MemoryError:  # std::bad_alloc: Thrust has no memory to sort
                raise memory_error(cupy, error, place or "cuda") from error
            if (explained := explain_device_error(error)) is not None:
                raise explained from error
            raise

    checked = refusing_16_bits(function, call)

    def call_first(*args: Any, **kwargs: Any) -> Any:
        result = checked(*args, **kwargs)
        # CuPy is imported now: replace this function in the kernel's globals. No lock is needed:
        # concurrent first calls store equivalent functions.
        direct = None if own else _direct(function, find(), checked)
        kernel.__globals__["function"] = direct or checked
        return result

    unusual = in_float32_for_cupy(function, checked) or keeping_dtype(function, checked)
    kernel = make_kernel(function, call_first, unusual)
    return kernel


def _direct(function: ArrayFunction, found: Kernel, call: Kernel) -> Kernel | None:
    """Return a fast path of ``call`` that calls ``found`` directly on arrays of the current GPU.

    Finding the device of a call takes longer than the rest of the kernel's Python. Return None for
    operators that write, create arrays or take lists of them, for factorizations, and for those
    whose result size depends on an integer argument. Large and empty arrays take the general path,
    which checks sizes: see ``gpu_sizes``.
    """
    arguments = function.schema.arguments
    tensors = [n for n, each in enumerate(arguments) if each.type.dispatches]
    if (
        function.schema.is_mutable
        or not tensors
        or any(str(arguments[n].type) != "Tensor" or arguments[n].kwarg_only for n in tensors)
        or any(each.name == "device" for each in arguments)
        or function.schema.name.name in (*FACTORIZATIONS, *_ENLARGING)
    ):
        return None
    cupy = _import("cupy")
    of_gpu = cupy.ndarray
    is_only = cupy.cuda.runtime.getDeviceCount() == 1
    current = cupy.cuda.runtime.getDevice
    of_two = LARGE**2
    most = LARGE if len(tensors) == 1 else of_two

    # Special functions for one and two arrays: without packing and loops, calls take 0.2 us less.
    def call_of_one(x: Any) -> Any:
        if type(x) is of_gpu and 0 < x.size <= LARGE:
            try:
                return found(x)
            except _FAILURES:
                pass  # ``call`` fails again, and explains the error
        return call(x)

    def call_of_two(x1: Any, x2: Any) -> Any:
        if type(x1) is of_gpu and type(x2) is of_gpu and 0 < x1.size * x2.size <= of_two:
            try:
                return found(x1, x2)
            except _FAILURES:
                pass
        return call(x1, x2)

    def call_of_more(*args: Any, **kwargs: Any) -> Any:
        size = 1
        for n in tensors:
            if type(args[n]) is not of_gpu:
                return call(*args, **kwargs)
            size *= args[n].size
        if not 0 < size <= most:
            return call(*args, **kwargs)
        if is_only or {args[n].data.device_id for n in tensors} == {current()}:
            try:
                return found(*args, **kwargs)
            except _FAILURES:
                pass
        return call(*args, **kwargs)

    if is_only and len(arguments) == len(tensors) <= 2:
        return call_of_one if len(tensors) == 1 else call_of_two
    return call_of_more


def _checked(found: Kernel) -> Kernel:
    """Return ``found``, raising LinAlgError for matrices for which NumPy raises it.

    This synchronizes with the GPU. By default, CuPy returns whatever cuSOLVER leaves in the output.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with _import("cupyx").errstate(linalg="raise"):
            return found(*args, **kwargs)

    return call


@functools.cache
def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DeviceError(
            f"arrays on a GPU need CuPy, which cannot be imported: {error}", hint=INSTALL_HINT
        ) from error


def _on_gpu(value: Any, cupy: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return array_of_cupy(cupy, np.asarray(value))
    if isinstance(value, list):
        return [_on_gpu(each, cupy) for each in value]
    return value
