"""Tensors that a node keeps for the way back.

Mirrors ``torch/csrc/autograd/saved_variable.h``: what is used then must be what it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.autograd.node import Edge
from opdispatch.autograd.variable import AutogradMeta, counter_of, version_of
from opdispatch.errors import AutogradError

if TYPE_CHECKING:
    from opdispatch.autograd.node import Node


class SavedTensor:
    """An argument of a call, and the version that it had."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._version = 0 if tensor.autograd_meta is None else version_of(tensor)

    def unpack(self, node: Node) -> Any:
        """The tensor. Raises AutogradError if it was written to meanwhile."""
        tensor = self._tensor
        if version_of(tensor) != self._version:
            raise _modified(node, tensor, "", version_of(tensor), self._version)
        return tensor


class SavedResult:
    """A result of the node itself: kept without its history, which would be a circle."""

    __slots__ = ("_array", "_counter", "_keys", "_number", "_type", "_version")

    def __init__(self, tensor: Any, number: int) -> None:
        self._type, self._array, self._keys = type(tensor), tensor.array, tensor.key_bits
        self._number = number
        self._counter = counter_of(tensor)
        self._version = self._counter.value

    def unpack(self, node: Node) -> Any:
        """The tensor, with its history. Raises AutogradError if it was written to meanwhile."""
        counter = self._counter
        if counter.value != self._version:
            what = f", result {self._number} of {node.name},"
            raise _modified(node, self._array, what, counter.value, self._version)
        result = self._type(self._array)
        result.key_bits = self._keys
        meta = result.autograd_meta = AutogradMeta()
        meta.edge = Edge(node, self._number)
        meta.counter = counter
        result.requires_grad_flag = True
        return result


def _modified(node: Node, tensor: Any, what: str, version: int, expected: int) -> AutogradError:
    return AutogradError(
        f"a tensor that {node.name} needs was modified by an in-place operation: {tensor.dtype} "
        f"{list(tensor.shape)}{what} is at version {version}; expected version {expected} instead",
        hint="write to a copy of it",
    )
