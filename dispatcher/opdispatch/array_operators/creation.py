"""Arrays that are made of none: the device that is asked for says which backend makes them."""

from __future__ import annotations

from typing import Any

from opdispatch.array_operators.functions import ArrayFunction
from opdispatch.array_operators.kernels import Kernel
from opdispatch.arrays import CPU_BITS, backend_of_device
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.dispatcher import Dispatcher


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
