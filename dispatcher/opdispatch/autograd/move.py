"""A tensor's way to another device, as a step of the graph: gradients go back to where it was."""

from __future__ import annotations

from typing import Any

from opdispatch.autograd.node import Gradients, Node
from opdispatch.autograd.variable import edge_of, facts_of, meta_of
from opdispatch.grad_mode import is_grad_enabled


class ToCopy(Node):
    """What ``Tensor.to`` leaves behind."""

    def __init__(self, tensor: Any) -> None:
        super().__init__((edge_of(tensor),), (facts_of(tensor),))
        self._device = tensor.device

    @property
    def name(self) -> str:
        """PyTorch's name, without its number."""
        return "ToCopyBackward"

    def apply(self, grads: list[Any]) -> Gradients:
        """The gradient, moved back: which is recorded itself, where the way back is."""
        return (grads[0].to(self._device),)


def record_move(tensor: Any, moved: Any) -> None:
    """Makes ``moved`` what ``tensor`` has become elsewhere, if gradients are recorded."""
    if tensor.requires_grad and is_grad_enabled():
        meta_of(moved).edge = (ToCopy(tensor), 0)
        moved.requires_grad_flag = True
