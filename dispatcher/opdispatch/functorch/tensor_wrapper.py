"""Tensors of a level that records gradients; each wraps a tensor of the level below.

Mirrors ``functorch/TensorWrapper.h``. Each level records its graph between its own wrappers, so
that levels never confuse their variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.arrays.level_array import LevelArray, is_batched
from opdispatch.functorch.batched_tensor import as_tensor, keys_over, tensor_over
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key
from opdispatch.tensors.tensor import Tensor

WRAPPED = bits_of_key(DispatchKey.FuncTorchGradWrapper)


class WrappedArray(LevelArray):
    """A tensor of the level below whose operations this level records."""

    __slots__ = ("is_immutable",)

    def __init__(self, layer: DynamicLayer, value: Any, is_immutable: bool) -> None:
        # All of LevelArray.__init__, at once: there is one for each result of each call.
        array = value.array if type(value) is Tensor else value
        self.key_bits = keys_over(value.key_bits, WRAPPED)
        self.layer = layer
        self.value = value
        self.shape = tuple(array.shape)
        self.dtype = array.dtype
        self.is_batched = is_batched(value)
        self.is_immutable = is_immutable
        """Whether the function captured it instead of receiving it as an argument; it is then
        read-only."""

    def __repr__(self) -> str:
        value = self.value.array if isinstance(self.value, Tensor) else self.value
        return f"GradTrackingTensor(level={self.layer.level}, value={value!r})"


def make_wrapper(layer: DynamicLayer, value: Any, *, is_immutable: bool = False) -> Tensor:
    """Return a tensor of that level. Raises TransformError unless ``value`` is dense."""
    return tensor_over(WrappedArray(layer, as_tensor(value), is_immutable))


def is_of(value: Any, layer: DynamicLayer) -> bool:
    """Return whether it is a wrapper of that level."""
    return (
        type(value) is Tensor
        and isinstance(value.array, WrappedArray)
        and value.array.layer is layer
    )


def all_alive(values: Sequence[Any]) -> list[Any]:
    """Return the values, and those in lists, as ``unwrap_dead`` does."""
    found = [*values]
    for place, value in enumerate(found):
        if type(value) is Tensor:
            if isinstance(value.array, WrappedArray) and not value.array.layer.is_alive:
                found[place] = unwrap_dead(value)
        elif type(value) is list:
            found[place] = all_alive(value)
    return found


def unwrap_dead(value: Any) -> Any:
    """Return a tensor without the wrappers of levels that have ended."""
    while (
        type(value) is Tensor
        and isinstance(value.array, WrappedArray)
        and not value.array.layer.is_alive
    ):
        value = value.array.value
    return value
