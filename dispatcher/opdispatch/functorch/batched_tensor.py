"""Tensors with a hidden dimension, of the samples of a batch. Mirrors ``BatchedTensorImpl``.

The hidden dimension is always the first one of the tensor below, so that a batching rule need not
ask where it is; ``moveaxis``, a view, brings it there.
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
    """The samples of a batch: ``value[n]`` is what sample n has."""

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
    """Return the keys of a tensor of a level: its own key, and those of the tensor below.

    Raises TransformError unless that is dense.
    """
    keys = DispatchKeySet(bits)
    backend = keys.highest_backend_key
    if backend is None and own == _BATCHED:
        return own  # elsewhere, as a remote tensor: below, its class is asked
    if backend is None or not keys.has(DispatchKey.Dense):
        raise TransformError(
            "a function transform is of dense tensors of this process, and was given one with the "
            f"keys {', '.join(map(str, keys))}",
            hint="session.grad takes remote tensors" if backend is None else "use to_dense()",
        )
    return key_set_of_backend(backend).bits | own


def tensor_over(array: LevelArray) -> Tensor:
    """Return a tensor of a level: ``Tensor(array)``, without looking up what is known."""
    tensor = Tensor.__new__(Tensor)
    tensor.array = array
    tensor.key_bits = array.key_bits
    tensor.autograd_meta = None
    tensor.requires_grad_flag = False
    return tensor


def make_batched(layer: DynamicLayer, value: Any) -> Tensor:
    """Return ``value`` with its first dimension hidden as the batch.

    Raises TransformError unless it is dense.
    """
    return tensor_over(BatchedArray(layer, as_tensor(value)))


def as_tensor(value: Any) -> Any:
    """Return a plain array as a tensor; a tensor as it is."""
    return value if hasattr(value, "key_bits") else Tensor(value)


def unwrap(value: Any, layer: DynamicLayer) -> tuple[Any, int | None]:
    """Return the value below a tensor of that level and its hidden dimension; others unchanged."""
    if type(value) is Tensor and type(value.array) is BatchedArray and value.array.layer is layer:
        return value.array.value, 0
    return value, None


def moved_to_front(value: Any, dim: int) -> Any:
    """Return ``value`` with that dimension first."""
    return value if dim == 0 else array_namespace().moveaxis(value, dim, 0)


def is_tensor(value: Any) -> bool:
    """Return whether it is a tensor or an array."""
    return find_key_bits(value) is not None
