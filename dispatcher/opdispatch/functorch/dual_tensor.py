"""Dual tensors: values of a level of forward mode, with their tangents.

    value     a tensor of the level below
    tangent   its directional derivative, a tensor of the same shape and dtype; None means zero

Mirrors ``torch/csrc/autograd/forward_grad.h``, where a tensor has a tangent for each level; here
each level has tensors of its own, as for every other transform.

Note [Tangents of views]
    Tangents are immutable: a write to a tensor replaces its tangent. A tangent may therefore be
    shared even where the values are not. A view keeps its root and the calls that produce it from
    that root. A write to a view replaces the tangents of the root and of all its live views.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from opdispatch.arrays.level_array import LevelArray
from opdispatch.functorch.batched_tensor import as_tensor, keys_over, tensor_over
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.functorch.tensor_wrapper import WRAPPED, WrappedArray
from opdispatch.tensors.tensor import Tensor

Replay = Callable[[Any], Any]
"""Function that applies the view operations to another tensor."""


class DualArray(WrappedArray):
    """A value of the level below, and its tangent."""

    __slots__ = ("_views", "path", "root", "tangent")

    def __init__(
        self, layer: DynamicLayer, value: Any, tangent: Any = None, is_immutable: bool = False
    ) -> None:
        # All of WrappedArray.__init__, at once: there is one for each result of each call.
        array = value.array
        self.key_bits = keys_over(value.key_bits, WRAPPED)
        self.layer = layer
        self.value = value
        self.shape = tuple(array.shape)
        self.dtype = array.dtype
        self.is_batched = isinstance(array, LevelArray) and array.is_batched
        self.is_immutable = is_immutable
        self.tangent = tangent
        self.root: DualArray | None = None
        """The base, which is not itself a view; see Note [Tangents of views]."""
        self.path: tuple[Replay, ...] = ()
        """The view operations that produce it from its root."""
        self._views: list[weakref.ref[DualArray]] = []

    @property
    def origin(self) -> DualArray:
        """The root that it is a view of, or itself if it is not a view."""
        return self if self.root is None else self.root

    def become_view_of(self, other: DualArray, replay: Replay) -> None:
        """Record that it is a view of ``other``, and how it was made."""
        self.root = other.origin
        self.path = (*other.path, replay)
        self.is_immutable = self.root.is_immutable
        views = self.root._views
        views[:] = [each for each in views if each() is not None]
        views.append(weakref.ref(self))

    def views(self) -> Iterator[DualArray]:
        """Iterate over the live views of a root, oldest first."""
        return (view for each in self._views if (view := each()) is not None)

    def replay(self, root: Any) -> Any:
        """Apply the view operations to ``root``, which is a value or a tangent."""
        for make in self.path:
            root = make(root)
        return root

    def detached(self) -> DualArray:
        """Return the value, detached at the level below, without its tangent."""
        made = super().detached()
        assert isinstance(made, DualArray)
        made.tangent, made.root, made.path, made._views = None, None, (), []
        return made

    def __repr__(self) -> str:
        value = self.value.array if isinstance(self.value, Tensor) else self.value
        return f"DualTensor(level={self.layer.level}, value={value!r}, tangent={self.tangent!r})"


def make_dual(
    layer: DynamicLayer, value: Any, tangent: Any = None, *, is_immutable: bool = False
) -> Tensor:
    """Return a tensor of that level. Raises TransformError unless ``value`` is dense."""
    return tensor_over(DualArray(layer, as_tensor(value), tangent, is_immutable))


def dual_of(value: Any, layer: DynamicLayer) -> DualArray | None:
    """Return the value and tangent of a tensor of that level, or None for any other value."""
    if type(value) is Tensor and type(value.array) is DualArray and value.array.layer is layer:
        return value.array
    return None
