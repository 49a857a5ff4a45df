"""The Autocast keys: kernels that cast floating-point arguments and redispatch.

The policy determines the dtype:

    lower_precision_fp    the dtype of the block: `get_autocast_dtype`
    fp32                  float32
    fp32_set_opt_dtype    the argument ``dtype`` is set to float32
    promote               the widest dtype among the arguments: float32 if any has it
    cast_inputs           a dtype given when the kernel is made

Tensors of the key's device type with a floating-point dtype other than float64 are cast. The cast
of a leaf that requires gradients is cached until the outermost block ends. The key is excluded
while the operator runs, so calls made by its kernels are not cast again.

Mirrors ``ATen/autocast_mode.{h,cpp}``. PyTorch's cache has one entry per tensor, which can be stale
after a nested block of another dtype or a write to the tensor. Here, an entry also depends on the
dtype, the version and grad mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import find_key_bits
from opdispatch.autograd.autograd_meta import view_of
from opdispatch.autograd.variable import version_of
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import BackendComponent
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.autocast_mode import (
    AUTOCAST_STATE,
    autocast_key,
    dtype_to_cast_to,
    get_autocast_dtype,
)
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.lazy_imports import array_operators
from opdispatch.local_state.local_dispatch_key_set import ExcludeDispatchKeyGuard
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_FLOAT32 = np.dtype(np.float32)

Policy = Callable[["OperatorHandle", str, list[Any]], None]
"""A policy: function that casts the arguments on the stack for a device type."""


def make_autocast_kernel(policy: Policy, device_type: str) -> KernelFunction:
    """Return a kernel for the Autocast key of ``device_type``, which any operator can use.

    Raises ArgumentError if there is no such key.
    """
    key = autocast_key(device_type)
    off = DispatchKeySet.of(key)
    below = DispatchKeySet.full_after(key)

    def call_with_casts(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        with ExcludeDispatchKeyGuard(off):
            policy(op, device_type, stack)
            op.redispatch_boxed(keys & below, stack)

    return KernelFunction.from_boxed(call_with_casts)


# -- policies ----------------------------------------------------------------------------------


def lower_precision_fp(op: OperatorHandle, device_type: str, stack: list[Any]) -> None:
    """Cast to the dtype of the block."""
    _cast_all(stack, get_autocast_dtype(device_type), device_type)


def fp32(op: OperatorHandle, device_type: str, stack: list[Any]) -> None:
    """Cast to float32."""
    _cast_all(stack, _FLOAT32, device_type)


def fp32_set_opt_dtype(op: OperatorHandle, device_type: str, stack: list[Any]) -> None:
    """Set the argument ``dtype`` to float32 if it is omitted and the first argument is eligible."""
    names = [argument.name for argument in op.call_signature.schema.arguments]
    place = names.index("dtype")
    if stack[place] is None and is_eligible(stack[0], device_type):
        stack[place] = _FLOAT32


def promote(op: OperatorHandle, device_type: str, stack: list[Any]) -> None:
    """Cast to float32 if an argument is float32, otherwise to the dtype of the block.

    Raises ArgumentError if one is neither.
    """
    lower = get_autocast_dtype(device_type)
    dtypes = {value.dtype for value in _flat(stack) if is_eligible(value, device_type)}
    if _FLOAT32 not in dtypes and (others := sorted(map(str, dtypes - {lower}))):
        raise ArgumentError(
            f"{op.name} was given tensors of {' and '.join(others)} under autocast, which promotes "
            f"float32 and {lower}",
            hint="convert them, or call it under autocast(enabled=False)",
            operator=str(op.name),
        )
    _cast_all(stack, _FLOAT32 if _FLOAT32 in dtypes else lower, device_type)


def cast_inputs(dtype: Any) -> Policy:
    """Cast to ``dtype``. Raises ArgumentError if it is not numeric."""
    target = dtype_to_cast_to(dtype)

    def cast_to_it(op: OperatorHandle, device_type: str, stack: list[Any]) -> None:
        _cast_all(stack, target, device_type)

    return cast_to_it


# -- casts -------------------------------------------------------------------------------------


def is_eligible(value: Any, device_type: str) -> bool:
    """Return whether ``value`` is a floating-point tensor of the device type, but not float64."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or not _is_castable(dtype):
        return False
    bits = find_key_bits(value)
    return bits is not None and bool(bits & _bit_of(device_type))


def cached_cast(value: Any, dtype: np.dtype[Any], device_type: str) -> Any:
    """Return the value cast to ``dtype`` if it is eligible, or a list with its tensors cast."""
    if type(value) is list:
        return [cached_cast(each, dtype, device_type) for each in value]
    if not is_eligible(value, device_type) or value.dtype == dtype:
        return value
    cache = AUTOCAST_STATE.get().cache
    if cache is None or not _is_kept(value, dtype, device_type):
        return _astype()(value, dtype)
    key = (id(value), dtype, AUTOGRAD_STATE.get().grad_mode)
    found = cache.get(key)
    if found is not None and found[1] is value.array and found[2] == version_of(value):
        return found[3]
    cast = _astype()(value, dtype)
    # The entry keeps the tensor alive, so that its id cannot be reused.
    cache[key] = (value, value.array, version_of(value), cast)
    return cast


def _is_kept(value: Any, dtype: np.dtype[Any], device_type: str) -> bool:
    """Return whether to cache a cast: those of weights are likely to be needed again."""
    return (
        isinstance(value, Tensor)
        and value.requires_grad
        and value.dtype == _FLOAT32
        and dtype == get_autocast_dtype(device_type)
        and AUTOCAST_STATE.get().cache_enabled
        and value.is_leaf
        and view_of(value) is None
    )


def _cast_all(stack: list[Any], dtype: np.dtype[Any], device_type: str) -> None:
    stack[:] = [cached_cast(value, dtype, device_type) for value in stack]


def _flat(stack: list[Any]) -> list[Any]:
    return [each for value in stack for each in (value if type(value) is list else [value])]


@functools.cache
def _is_castable(dtype: np.dtype[Any]) -> bool:
    # NumPy says that dtypes of ml_dtypes are of kind V.
    return dtype.itemsize < 8 and dtype.name.startswith(("float", "bfloat"))


@functools.cache
def _bit_of(device_type: str) -> int:
    name = autocast_key(device_type).name.removeprefix("Autocast")
    return 1 << BackendComponent[name]


@functools.cache
def _astype() -> Any:
    return array_operators().astype.default
