"""The record of a call whose backward pass is a user's function.

Mirrors ``FunctionCtx`` of ``torch/autograd/function.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.autograd.node import Node
from opdispatch.autograd.saved_tensor import (
    pack_result,
    pack_tensor,
    released_error,
    save_result,
    save_tensor,
    unpack_result,
    unpack_tensor,
)
from opdispatch.autograd.variable import Variable
from opdispatch.autograd.watch import SavedTensorHooks
from opdispatch.errors import ArgumentError

_ARGUMENT = -1


class Context:
    """``ctx``: what is kept of a call for ``backward``; takes any attribute."""

    # Of most contexts, most of this stays as it is.
    materializes = True
    _to_save: tuple[Any, ...] = ()
    _saved: list[tuple[int, Any]] | None = None
    """Of each that was kept: of a result its number and a SavedResult, of an argument
    ``_ARGUMENT`` and a SavedTensor, and ``_ARGUMENT`` and None of None. A PackedTensor
    may be in the place of either."""
    _node: Node | None = None

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep arguments or results of the call; each is a tensor or None.

        Arguments of an operator may be arrays, too, which are tensors when they are used. Whether
        tensors were written to meanwhile is checked then. Raises ArgumentError.
        """
        for each in tensors:
            if not isinstance(each, Variable):
                tensors = tuple([self._kept(each) for each in tensors])
                break
        self._to_save = tensors

    @staticmethod
    def _kept(value: Any) -> Any:
        if value is not None and not isinstance(value, Variable):
            raise ArgumentError(
                f"save_for_backward keeps tensors, not {type(value).__name__}",
                hint="make it an attribute of the context",
            )
        return value

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether ``backward`` is given zeros, or None, for results without a gradient."""
        self.materializes = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Saved tensors. Raises AutogradError if one was written to, or was released."""
        return self.saved_of(self._node)

    # -- for nodes ------------------------------------------------------------------------------

    def saved_of(self, node: Node | None) -> tuple[Any, ...]:
        """Return the ``saved_tensors`` of a node. Raises AutogradError."""
        if self._saved is None or node is None:
            raise released_error()
        return tuple([_unpacked(number, saved, node) for number, saved in self._saved])

    def keep(self, results: Sequence[Any], made: Sequence[Any] | None = None) -> None:
        """Keep what was saved; ``results`` are those of the call, one by one.

        ``made`` are what they have become, where these are others. A result without a gradient
        refers to no node, and is kept as an argument is.
        """
        saved: list[tuple[int, Any]] = []
        for each in self._to_save:
            for number in range(len(results) - 1, -1, -1):
                if each is results[number] and each is not None:
                    result = each if made is None else made[number]
                    if result.requires_grad_flag:
                        saved.append((number, save_result(each)))
                    else:
                        saved.append((_ARGUMENT, save_tensor(result)))
                    break
            else:
                saved.append((_ARGUMENT, None if each is None else save_tensor(each)))
        self._saved = saved
        self._to_save = ()

    def pack_saved(self, hooks: SavedTensorHooks) -> None:
        """Pack the saved tensors by ``hooks``."""
        self._saved = [
            (number, saved and (pack_tensor if number == _ARGUMENT else pack_result)(saved, hooks))
            for number, saved in self._saved or ()
        ]

    def call(self, node: Node, backward: Callable[..., Any], gradients: Sequence[Any]) -> Any:
        """Call ``backward`` for a node and return its gradients."""
        self._node = node  # not for longer: it would be a circle
        try:
            return backward(self, *gradients)
        finally:
            self._node = None

    def release(self) -> None:
        """Release the saved tensors."""
        self._saved = None


def _unpacked(number: int, saved: Any, node: Node) -> Any:
    """Return the tensor, unpacked."""
    if saved is None:
        return None
    return unpack_tensor(saved, node) if number == _ARGUMENT else unpack_result(saved, node, number)
