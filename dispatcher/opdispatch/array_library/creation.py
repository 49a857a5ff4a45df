"""Arrays that are made of none: the device that is asked for says which backend makes them."""

from __future__ import annotations

from typing import Any

from opdispatch.array_library.functions import ArrayFunction
from opdispatch.array_library.kernels import Kernel
from opdispatch.arrays import backend_of_device
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.dispatcher import Dispatcher


def make_selection(dispatcher: Dispatcher, function: ArrayFunction) -> Kernel:
    """The kernel for ``BackendSelect``, as PyTorch's: it goes on with the key of the device."""
    name = f"array::{function.operator}"

    def select(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        backend = backend_of_device("cpu" if device is None else str(device))
        operator = dispatcher.get_schema(name)
        return operator.redispatch(DispatchKeySet(backend.key_bits), *args, **kwargs)

    return select
