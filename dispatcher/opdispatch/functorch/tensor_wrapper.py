"""Tensors of a level that records gradients: around those of the level below.

Mirrors ``functorch/TensorWrapper.h``. The graph of a level is between its own wrappers, so that no
level takes another's variables for its own.
"""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.level_array import LevelArray
from opdispatch.functorch.batched_tensor import as_tensor, keys_over, tensor_over
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key
from opdispatch.tensors.tensor import Tensor

WRAPPED = bits_of_key(DispatchKey.FuncTorchGradWrapper)


class WrappedArray(LevelArray):
    """A tensor of the level below, to be recorded at this one."""

    __slots__ = ("is_immutable",)

    def __init__(self, layer: DynamicLayer, value: Any, is_immutable: bool) -> None:
        array = getattr(value, "array", None)
        batched = isinstance(array, LevelArray) and array.is_batched
        keys = keys_over(value.key_bits, WRAPPED)
        super().__init__(layer, value, tuple(value.shape), batched, keys)
        self.is_immutable = is_immutable
        """Whether the function has it from outside, not as an argument: it cannot be written to."""

    def __repr__(self) -> str:
        value = self.value.array if isinstance(self.value, Tensor) else self.value
        return f"GradTrackingTensor(level={self.layer.level}, value={value!r})"


def make_wrapper(layer: DynamicLayer, value: Any, *, is_immutable: bool = False) -> Tensor:
    """A tensor of that level. Raises TransformError unless ``value`` is dense."""
    return tensor_over(WrappedArray(layer, as_tensor(value), is_immutable))


def is_of(value: Any, layer: DynamicLayer) -> bool:
    """Whether it is a wrapper of that level."""
    return (
        type(value) is Tensor
        and isinstance(value.array, WrappedArray)
        and value.array.layer is layer
    )


def unwrap_dead(value: Any) -> Any:
    """A tensor without the wrappers of levels that are over."""
    while (
        type(value) is Tensor
        and isinstance(value.array, WrappedArray)
        and not value.array.layer.is_alive
    ):
        value = value.array.value
    return value
