"""``ctx``: the context of a call with a user-defined backward function.

Mirrors ``FunctionCtx`` of ``torch/autograd/function.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.autograd.node import Node
from opdispatch.autograd.recording_state import SavedTensorHooks
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
from opdispatch.errors import ArgumentError

_ARGUMENT = -1


class Context:
    """Values that ``forward`` keeps for ``backward``. Arbitrary attributes can be set."""

    # Class attributes as defaults: few contexts set more than one or two of them.
    materializes = True
    _to_save: tuple[Any, ...] = ()
    _saved: list[tuple[int, Any]] | None = None
    """Saved tensors as pairs: the index of a result and a SavedResult, ``_ARGUMENT`` and a
    SavedTensor for an argument, or ``_ARGUMENT`` and None. Hooks replace the second item by a
    PackedTensor."""
    _node: Node | None = None

    def save_for_backward(self, *tensors: Any) -> None:
        """Save arguments or results of the call for ``backward``; each is a tensor or None.

        Arguments of an operator may also be arrays, which are read back as tensors. In-place writes
        since are detected when ``saved_tensors`` is read. Raises ArgumentError for other values.
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
        """Set whether ``backward`` receives zeros or None for results without a gradient."""
        self.materializes = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved tensors. Raises AutogradError if one was written to or the graph was
        released."""
        return self.saved_of(self._node)

    # -- for nodes ------------------------------------------------------------------------------

    def saved_of(self, node: Node | None) -> tuple[Any, ...]:
        """Return the ``saved_tensors`` of a node. Raises AutogradError like ``saved_tensors``."""
        if self._saved is None or node is None:
            raise released_error()
        return tuple([_unpacked(number, saved, node) for number, saved in self._saved])

    def keep(self, results: Sequence[Any], made: Sequence[Any] | None = None) -> None:
        """Convert the tensors passed to ``save_for_backward`` to their stored form.

        ``results`` are the results of the call as a flat list, and ``made`` the tensors returned in
        their place, if different. A non-differentiable result has no node and is stored as an
        argument is.
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
        self._node = node  # only during the call, to avoid a reference cycle
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
