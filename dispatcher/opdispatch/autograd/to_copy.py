"""Differentiable moves of a tensor to another device, and the end of the graph at another layout.

The gradient of a move returns to the original device. Layout conversions have no derivative.
"""

from __future__ import annotations

from typing import Any, NoReturn

from opdispatch.arrays import device_of
from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.node import Gradients, Node
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS, edge_of, facts_of, meta_of
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import is_grad_enabled
from opdispatch.local_state.lazy_imports import array_namespace


class ToCopy(Node):
    """Node of ``Tensor.to``."""

    def __init__(self, tensor: Any) -> None:
        super().__init__((edge_of(tensor),), (facts_of(tensor),))
        self._device = tensor.device

    @property
    def name(self) -> str:
        """PyTorch's name, without its number."""
        return "ToCopyBackward"

    def apply(self, grads: list[Any]) -> Gradients:
        """Return the gradient, moved back; the move is recorded if the backward pass is."""
        return (grads[0].to(self._device),)


def record_move(tensor: Any, moved: Any) -> None:
    """Record ``moved`` as a copy of ``tensor`` on another device, if gradients are recorded."""
    if tensor.requires_grad and is_grad_enabled():
        meta_of(moved).edge = (ToCopy(tensor), 0)
        moved.requires_grad_flag = True


def gradient_on(device: str, gradient: Any, what: str) -> Any:
    """Move a zero-dimensional gradient to the device of its tensor.

    Zero-dimensional CPU tensors can be combined with tensors of any device, where their gradients
    are computed. Raises AutogradError for other gradients that are on a different device.
    """
    array = gradient.array
    if (there := device_of(array)) == device:
        return gradient
    if array.shape:
        raise AutogradError(f"{what} is on {there}, and the tensor that it is of is on {device}")
    if isinstance(array, LevelArray):  # by an operator, so that transform levels below see it
        return array_namespace().astype(gradient, array.dtype, device=device)
    return gradient.to(device)


class OtherLayout(Node):
    """Node of ``to_sparse``, ``values`` and other layout conversions, which have no derivative."""

    def __init__(self, tensor: Any) -> None:
        super().__init__((edge_of(tensor),), (facts_of(tensor),))

    @property
    def name(self) -> str:
        """Its name."""
        return "OtherLayout"

    def apply(self, grads: list[Any]) -> NoReturn:
        """Raise AutogradError."""
        raise AutogradError(
            "the backward pass reaches a tensor's conversion to or from another layout, which has "
            "no derivative",
            hint="use operators, or detach() the tensor before",
        )


def record_without_derivative(tensor: Any, made: Any) -> None:
    """Record ``made`` as the result of a layout conversion of ``tensor``, if gradients are
    recorded."""
    if tensor.requires_grad and is_grad_enabled() and made.array.dtype.kind in DIFFERENTIABLE_KINDS:
        meta_of(made).edge = (OtherLayout(tensor), 0)
        made.requires_grad_flag = True
