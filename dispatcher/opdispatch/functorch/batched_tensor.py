"""Tensors with a hidden batch dimension. Mirrors ``BatchedTensorImpl``.

The hidden dimension is always dimension 0 of the tensor below, so batching rules need not look it
up; ``moveaxis``, which returns a view, puts it there.
"""

from __future__ import annotations

import functools
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.arrays.level_array import LevelArray
from opdispatch.errors import TransformError
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.tensors.tensor import Tensor, key_set_of_backend

_BATCHED = bits_of_key(DispatchKey.FuncTorchBatched)


class BatchedArray(LevelArray):
    """A batch of samples: ``value[n]`` is sample n."""

    __slots__ = ()

    def __init__(self, layer: DynamicLayer, value: Any) -> None:
        # All of LevelArray.__init__, at once: there is one for each result of each call.
        self.key_bits = keys_over(value.key_bits, _BATCHED)
        self.layer = layer
        self.value = value
        array = value.array if type(value) is Tensor else value
        self.shape = tuple(array.shape[1:])
        self.dtype = array.dtype
        self.is_batched = True

    def __repr__(self) -> str:
        value = self.value.array if isinstance(self.value, Tensor) else self.value
        return f"BatchedTensor(level={self.layer.level}, bdim=0, value={value!r})"


@functools.cache
def keys_over(bits: int, own: int) -> int:
    """Return the key bits of a tensor of a level: the level's key and those of the tensor below.

    Raises TransformError unless the tensor below is dense.
    """
    keys = DispatchKeySet(bits)
    backend = keys.highest_backend_key
    if backend is None and own == _BATCHED:
        return own  # a tensor of another process; its class handles the call below
    if backend is None or not keys.has(DispatchKey.Dense):
        raise TransformError(
            "function transforms require dense tensors of this process; one was given with the "
            f"keys {', '.join(map(str, keys))}",
            hint="session.grad takes remote tensors" if backend is None else "use to_dense()",
        )
    return key_set_of_backend(backend).bits | own


def tensor_over(array: LevelArray) -> Tensor:
    """Return a tensor of a level: ``Tensor(array)`` without the lookups of its constructor."""
    tensor = Tensor.__new__(Tensor)
    tensor.array = array
    tensor.key_bits = array.key_bits
    tensor.autograd_meta = None
    tensor.requires_grad_flag = False
    return tensor


def make_batched(layer: DynamicLayer, value: Any) -> Tensor:
    """Hide dimension 0 of ``value`` as the batch dimension.

    Raises TransformError unless ``value`` is dense.
    """
    return tensor_over(BatchedArray(layer, as_tensor(value)))


def as_tensor(value: Any) -> Any:
    """Convert a plain array to a Tensor; return a Tensor unchanged."""
    return value if hasattr(value, "key_bits") else Tensor(value)


def unwrap(value: Any, layer: DynamicLayer) -> tuple[Any, int | None]:
    """Return the value below a tensor of that level and its hidden dimension, or ``(value,
    None)``."""
    if type(value) is Tensor and type(value.array) is BatchedArray and value.array.layer is layer:
        return value.array.value, 0
    return value, None


def moved_to_front(value: Any, dim: int) -> Any:
    """Return ``value`` with the given dimension moved to the front."""
    return value if dim == 0 else array_namespace().moveaxis(value, dim, 0)


def is_tensor(value: Any) -> bool:
    """Return whether it is a tensor or an array."""
    return find_key_bits(value) is not None
