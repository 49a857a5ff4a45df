"""Create arrays on the requested device: the argument ``device`` selects the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.arrays import (
    CPU_BITS,
    backend_of_device,
    device_of,
    on_device,
    split_device,
)
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.dispatcher import Dispatcher
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.functionalities.layer_kernel_source import FindOperator, LayerText
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.type_promotion import check_complex
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

_ON_HOST = DispatchKeySet(CPU_BITS)


def make_selection(schema: FunctionSchema, operator: FindOperator) -> KernelFunction:
    """Return the ``BackendSelect`` kernel of ``operator()``, like PyTorch's.

    It redispatches to the key of the device. If that backend has no kernel, it creates the array on
    the host and copies it to the device.
    """
    title = f"selection of {schema.name}"
    return _SelectionText(schema).compile(
        title, lambda _: _ON_HOST, _operator=operator, _make_on_device=_make_on_device
    )


class _SelectionText(LayerText):
    """The source of a selection kernel; its tail call is to the CPU kernel."""

    def lines(self) -> list[str]:
        """Return lines that call the CPU kernel without a device, else the device's kernel."""
        passed = ", ".join(each for each in self.passed if each != "device=device")
        return [
            f"if device is None: {self.tail_call()}",
            f"return _make_on_device(_operator(), device, {passed})",
        ]


def _make_on_device(op: OperatorHandle, device: str, *args: Any, **options: Any) -> Any:
    if split_device(device)[0] == "cpu":
        return op.redispatch_converted(_ON_HOST, *args, device=None, **options)
    backend = backend_of_device(device)
    keys = DispatchKeySet(backend.key_bits)
    if op.has_kernel_for_dispatch_key(keys.highest_priority_key):
        return op.redispatch_converted(keys, *args, device=device, **options)
    made = op.redispatch_converted(_ON_HOST, *args, device=None, **options)
    return made.to(device) if type(made) is Tensor else on_device(made, device)


def make_placed(
    dispatcher: Dispatcher, function: ArrayFunction, make: Callable[[], Kernel]
) -> Kernel:
    """Return the kernel of an operator that takes an array and a device.

    ``make()`` returns its kernel for the array's own device. For another device, ``zeros_like``
    calls ``zeros`` there; ``astype`` converts, then copies to the device.
    """
    kernel = make()
    if function.operator == "astype":
        return _make_astype(kernel)
    name = f"array::{function.operator.removesuffix('_like')}"

    def make_there(x: Any, *fill: Any, dtype: Any, device: str) -> Any:
        wanted = x.dtype if dtype is None else dtype
        array = dispatcher.get_schema(name)(list(x.shape), *fill, dtype=wanted, device=device)
        return Tensor(array) if type(x) is Tensor else array

    # Explicit parameters: packing *args would take a third of the time of a small call.
    def make_like(x: Any, *, dtype: Any = None, device: str | None = None) -> Any:
        if device is None or _is_on(x, device):
            return kernel(x, dtype=dtype)
        return make_there(x, dtype=dtype, device=device)

    def full_like(x: Any, fill: Any, *, dtype: Any = None, device: str | None = None) -> Any:
        if device is None or _is_on(x, device):
            return kernel(x, fill, dtype=dtype)
        return make_there(x, fill, dtype=dtype, device=device)

    return full_like if function.operator == "full_like" else make_like


def _make_astype(kernel: Kernel) -> Kernel:
    def astype(x: Any, dtype: Any, *, copy: bool = True, device: str | None = None) -> Any:
        if x.dtype.kind == "c":
            check_complex("astype", x.dtype, dtype)
        if device is None or _is_on(x, device):
            return x if not copy and x.dtype == dtype else kernel(x, dtype, copy=copy)
        converted = kernel(x, dtype, copy=False)  # the transfer copies
        # Not ``Tensor.to``, which calls ``astype`` under modes that record calls.
        moved = on_device(converted.array if type(converted) is Tensor else converted, device)
        return Tensor(moved) if type(x) is Tensor else moved

    return astype


def _is_on(x: Any, device: str) -> bool:
    kind, number = split_device(device)
    here, place = split_device(x.device if type(x) is Tensor else device_of(x))
    return kind == here and number in (None, place)
