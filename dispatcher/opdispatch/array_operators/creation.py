"""Arrays where they are asked for: the argument ``device`` says which backend makes them."""

from __future__ import annotations

from typing import Any

from opdispatch.array_operators.dtypes import check_complex
from opdispatch.array_operators.functions import ArrayFunction
from opdispatch.array_operators.kernels import Kernel
from opdispatch.arrays import (
    CPU_BITS,
    backend_of_device,
    device_of,
    on_device,
    split_device,
)
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.dispatcher import Dispatcher
from opdispatch.tensor import Tensor


def make_selection(dispatcher: Dispatcher, function: ArrayFunction) -> Kernel:
    """The kernel for ``BackendSelect``, as PyTorch's: it goes on with the key of the device.

    For a backend without a kernel of its own, the array is made on the host.
    """
    name = f"array::{function.operator}"

    def select(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        backend = backend_of_device("cpu" if device is None else str(device))
        operator = dispatcher.get_schema(name)
        keys = DispatchKeySet(backend.key_bits)
        if operator.has_kernel_for_dispatch_key(keys.highest_priority_key):
            return operator.redispatch(keys, *args, **kwargs)
        array = operator.redispatch(DispatchKeySet(CPU_BITS), *args, **{**kwargs, "device": None})
        return backend.from_host(array, str(device))

    return select


def make_placed(dispatcher: Dispatcher, function: ArrayFunction, kernel: Kernel) -> Kernel:
    """The kernel of an operator that has an array and a device, out of one for the array's device.

    ``zeros_like`` on another device calls ``zeros``; ``astype`` moves what it has converted.
    """
    if function.operator == "astype":
        return _make_astype(kernel)
    name = f"array::{function.operator.removesuffix('_like')}"

    def make_like(x: Any, *fill: Any, dtype: Any = None, device: str | None = None) -> Any:
        if device is None or _is_on(x, device):
            return kernel(x, *fill, dtype=dtype)
        wanted = x.dtype if dtype is None else dtype
        array = dispatcher.get_schema(name)(list(x.shape), *fill, dtype=wanted, device=device)
        return Tensor(array) if type(x) is Tensor else array

    return make_like


def _make_astype(kernel: Kernel) -> Kernel:
    def astype(x: Any, dtype: Any, *, copy: bool = True, device: str | None = None) -> Any:
        if x.dtype.kind == "c":
            check_complex("astype", x.dtype, dtype)
        target = None if device is None or _is_on(x, device) else device
        if target is None and not copy and x.dtype == dtype:
            return x
        if target is None:
            return kernel(x, dtype, copy=copy)
        converted = kernel(x, dtype, copy=False)  # what is moved is a copy
        # Not by ``to``, which calls this where somebody watches.
        moved = on_device(converted.array if type(converted) is Tensor else converted, target)
        return Tensor(moved) if type(x) is Tensor else moved

    return astype


def _is_on(x: Any, device: str) -> bool:
    kind, number = split_device(device)
    here, place = split_device(x.device if type(x) is Tensor else device_of(x))
    return kind == here and number in (None, place)
