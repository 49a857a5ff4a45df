"""Tensors that a node keeps for the way back: what is used then must be what it was.

Calls are many and most never go back, so what is kept is plain, and made into tensors again when
it is used. Mirrors ``torch/csrc/autograd/saved_variable.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from opdispatch.autograd.variable import AutogradMeta, VersionCounter, counter_of, version_of
from opdispatch.errors import AutogradError

if TYPE_CHECKING:
    from opdispatch.autograd.node import Node

SavedTensor: TypeAlias = "tuple[Any, int]"
"""A tensor that a call was given, and the version that it had."""
SavedResult: TypeAlias = "tuple[Any, int, VersionCounter, int]"
"""Array, keys, counter and version of a result of the node itself: without its history, which would
be a circle."""


def save_tensor(tensor: Any) -> SavedTensor:
    """What is kept of an argument."""
    return tensor, version_of(tensor)


def save_result(tensor: Any) -> SavedResult:
    """What is kept of a result."""
    counter = counter_of(tensor)
    # Of somebody's class, a tensor of it: what it is made of is the class's own affair.
    array = tensor.array if tensor._is_plain else tensor.detach()
    return array, tensor.key_bits, counter, counter.value


def unpack_tensor(saved: SavedTensor, node: Node) -> Any:
    """The tensor. Raises AutogradError if it was written to meanwhile."""
    tensor, version = saved
    if version_of(tensor) != version:
        raise _modified(node, tensor, "", version_of(tensor), version)
    return tensor


def unpack_result(saved: SavedResult, node: Node, number: int = 0) -> Any:
    """Result ``number``, with its history. Raises AutogradError if it was written to meanwhile."""
    from opdispatch.tensor import Tensor

    array, keys, counter, version = saved
    if counter.value != version:
        raise _modified(node, array, f", result {number} of {node.name},", counter.value, version)
    if isinstance(array, Tensor):
        result = array.detach()
    else:
        result = Tensor(array)
        result.key_bits = keys
    meta = result.autograd_meta = AutogradMeta()
    meta.edge = (node, number)
    meta.counter = counter
    result.requires_grad_flag = True
    return result


def _modified(node: Node, tensor: Any, what: str, version: int, expected: int) -> AutogradError:
    return AutogradError(
        f"a tensor that {node.name} needs was modified by an in-place operation: {tensor.dtype} "
        f"{list(tensor.shape)}{what} is at version {version}; expected version {expected} instead",
        hint="write to a copy of it",
    )
