"""Kernels for ``Meta``: return the shape and dtype of NumPy's result without computing elements.

They allocate no memory in proportion to the shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.arrays import MetaArray, common_device
from opdispatch.arrays.devices import device_mismatch
from opdispatch.native.array.operators.functions import ArrayFunction, Kernel
from opdispatch.native.array.operators.half_precision import (
    in_float32,
    keeping_dtype,
    refusing_16_bits,
)
from opdispatch.native.array.operators.kernels import make_kernel
from opdispatch.native.array.operators.meta_elementwise import META_ELEMENTWISE
from opdispatch.native.array.operators.meta_fft import META_FFT
from opdispatch.native.array.operators.meta_linalg import META_LINALG
from opdispatch.native.array.operators.meta_manipulation import META_MANIPULATION
from opdispatch.native.array.operators.meta_reductions import META_REDUCTIONS
from opdispatch.native.array.operators.preconditions import with_precondition


def make_meta_kernel(function: ArrayFunction, call: Callable[..., Any]) -> Kernel:
    """Return the ``Meta`` kernel of an operator, which calls ``call`` on ``MetaArray``.

    Host arrays are accepted if they are 0-d or indices, except as the target of a write. Raises
    DeviceError for other mixtures of devices.
    """
    name, free = f"array::{function.operator}", function.places_of_indices
    is_write = function.schema.is_mutable  # writes to its first argument
    call = in_float32(function, call) or refusing_16_bits(function, call)

    def call_on_meta(*args: Any, **kwargs: Any) -> Any:
        bound = (each for place, each in enumerate(args) if place not in free)
        found = common_device(name, *bound, *kwargs.values())
        if is_write and type(args[0]) is not MetaArray:
            raise device_mismatch(name, "cpu", str(found))
        return call(*args, **kwargs)

    return make_kernel(function, call_on_meta, keeping_dtype(function, call_on_meta))


_BY_TOPIC: dict[str, Callable[..., Any]] = {
    **META_ELEMENTWISE,
    **META_REDUCTIONS,
    **META_MANIPULATION,
    **META_LINALG,
    **META_FFT,
}
META_FUNCTIONS = {name: with_precondition(name, call) for name, call in _BY_TOPIC.items()}
"""The meta function of each operator overload, which takes ``MetaArray`` for tensors."""
