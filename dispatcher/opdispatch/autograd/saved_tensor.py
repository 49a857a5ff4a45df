"""Tensors saved for the backward pass, with a check that they were not written to since.

Most recorded calls never run backward, so saving stores plain tuples, and tensors are rebuilt from
them on use. Saved-tensor hooks are applied after the tuples are stored.

Mirrors ``torch/csrc/autograd/saved_variable.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.autograd_meta import AutogradMeta, VersionCounter
from opdispatch.autograd.node import Edge
from opdispatch.autograd.recording_state import SavedTensorHooks
from opdispatch.autograd.variable import (
    Variable,
    counter_of,
    edge_of,
    meta_of,
    version_of,
)
from opdispatch.errors import AutogradError, TransformError
from opdispatch.local_state.grad_mode import no_grad

if TYPE_CHECKING:
    from opdispatch.autograd.node import Node

SavedTensor: TypeAlias = "tuple[Any, int]"
"""An argument of the call and its version at that time."""
SavedResult: TypeAlias = "tuple[Any, int, VersionCounter, int]"
"""Array, keys, version counter and version of a result of the node itself. The history is left out
to avoid a reference cycle."""


_RETAIN_HINT = "use retain_graph=True the first time"


class PackedTensor:
    """Result of a pack hook, with the hook that unpacks it."""

    def __init__(self, hooks: SavedTensorHooks, tensor: Any, edge: Edge | None) -> None:
        self._unpack = hooks.unpack
        self._edge = edge
        if isinstance(tensor.array, LevelArray):
            raise TransformError(
                "hooks for saved tensors cannot be used in a function that is transformed",
                hint="transform a function that is called outside of the block",
            )
        before = version_of(tensor)
        with no_grad():
            self._packed = hooks.pack(tensor)
        if version_of(tensor) != before:
            raise AutogradError(
                f"the hook {hooks.pack} has written to the tensor that it was to pack",
                hint="write to a copy of it",
            )

    def unpack(self, edge: Edge | None = None) -> Any:
        """Unpack the tensor; the history of a result is given. Raises AutogradError for a wrong
        result."""
        tensor: Any = self._unpack(self._packed)
        if not isinstance(tensor, Variable):
            raise AutogradError(
                f"the hook {self._unpack} returned {type(tensor).__name__}; expected a Tensor"
            )
        if (edge := edge or self._edge) is None:
            return tensor
        tensor = tensor.detach()  # type: ignore[attr-defined]
        meta_of(tensor).edge = edge
        tensor.requires_grad_flag = True
        return tensor


def pack_tensor(saved: SavedTensor, hooks: SavedTensorHooks) -> PackedTensor:
    """Pack a saved argument."""
    return PackedTensor(hooks, saved[0], edge_of(saved[0]))


def pack_result(saved: SavedResult, hooks: SavedTensorHooks) -> PackedTensor:
    """Pack a saved result.

    The hook receives it without its history, to avoid a reference cycle.
    """
    return PackedTensor(hooks, _without_history(saved), None)


def save_tensor(tensor: Any) -> SavedTensor:
    """Save an argument for the backward pass."""
    return tensor, version_of(tensor)


def save_result(tensor: Any) -> SavedResult:
    """Save a result for the backward pass."""
    counter = counter_of(tensor)
    # For a user-defined class the tensor itself is kept: only the class knows how to rebuild it.
    array = tensor.array if tensor._is_plain else tensor.detach()
    return array, tensor.key_bits, counter, counter.value


def unpack_tensor(saved: SavedTensor | PackedTensor, node: Node) -> Any:
    """Return the tensor. Raises AutogradError if it was written to since it was saved."""
    if isinstance(saved, PackedTensor):
        return saved.unpack()
    tensor, version = saved
    if version_of(tensor) != version:
        raise _modified(node, tensor, "", version_of(tensor), version)
    return tensor


def unpack_result(saved: SavedResult | PackedTensor, node: Node, number: int = 0) -> Any:
    """Return result ``number`` with its history.

    Raises AutogradError if it was written to since it was saved.
    """
    if isinstance(saved, PackedTensor):
        return saved.unpack((node, number))
    array, _, counter, version = saved
    if counter.value != version:
        raise _modified(node, array, f", result {number} of {node.name},", counter.value, version)
    result = _without_history(saved)
    result.autograd_meta.edge = (node, number)
    result.requires_grad_flag = True
    return result


def second_pass_error(name: str) -> AutogradError:
    """Return the error for a node that a second backward pass reaches, which the first released."""
    return AutogradError(
        f"the backward pass reaches {name} a second time, and its saved values were released the "
        "first time",
        hint=_RETAIN_HINT,
    )


def released_error() -> AutogradError:
    """Return the error for saved tensors of a released graph, or of a call that has not ended."""
    return AutogradError(
        "the backward pass needs saved tensors that are gone: they were released the first time, "
        "or are requested before the call has ended",
        hint=_RETAIN_HINT,
    )


def _without_history(saved: SavedResult) -> Any:
    array, keys, counter, _ = saved
    if isinstance(array, Variable):
        result: Any = array.detach()  # type: ignore[attr-defined]
    else:
        result = Variable.plain_class(array)
        result.key_bits = keys
    meta = result.autograd_meta = AutogradMeta()
    meta.counter = counter
    return result


def _modified(node: Node, tensor: Any, what: str, version: int, expected: int) -> AutogradError:
    return AutogradError(
        f"a tensor that {node.name} needs was modified by an in-place operation: {tensor.dtype} "
        f"{list(tensor.shape)}{what} is at version {version}; expected version {expected} instead",
        hint="write to a copy of it",
    )
