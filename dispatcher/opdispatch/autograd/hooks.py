"""Calls of hooks, which receive gradients in the backward pass and may replace them.

Mirrors ``torch/csrc/autograd/python_hook.cpp``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from opdispatch.arrays import device_of
from opdispatch.autograd.node import AFTER, BEFORE, Gradients, LastHook, Node
from opdispatch.autograd.variable import Variable, copy_of, meta_of
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import is_grad_enabled


class RetainedGrad(LastHook):
    """The hook of ``retain_grad``: accumulates in ``grad`` of a non-leaf tensor."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = weakref.ref(tensor)

    def __call__(self, grad: Any) -> None:
        """Accumulate the gradient."""
        if (tensor := self._tensor()) is None:
            return
        meta = meta_of(tensor)
        if meta.grad is not None:
            meta.grad = meta.grad + grad
        else:
            has_history = grad.requires_grad and is_grad_enabled()
            meta.grad = grad if has_history else copy_of(grad)


def call_tensor_hooks(node: Node, gradients: list[Any]) -> list[Any]:
    """Call tensor hooks on gradients and return the new ones. Raises AutogradError for wrong
    results."""
    left = list(gradients)
    for number, hook in node.hooks or ():
        if number < 0 or (given := left[number]) is None:
            continue
        replaced = hook(given)
        if replaced is not None:
            _check(hook, replaced, given)
            _check_device(hook, replaced, given)
            left[number] = replaced
    return left


def call_prehooks(node: Node, gradients: list[Any]) -> list[Any]:
    """Call the node's prehooks and return the new gradients. Raises AutogradError for wrong
    results."""
    for number, hook in node.hooks or ():
        if number == BEFORE:
            given = gradients
            gradients = list(_replaced(hook, hook(tuple(given)), given))
            for each, before in zip(gradients, given, strict=True):
                if each is not None and before is not None:
                    _check_device(hook, each, before)
    return gradients


def call_posthooks(node: Node, results: Gradients, gradients: Sequence[Any]) -> Gradients:
    """Call the node's posthooks and return the new gradients. Raises AutogradError for wrong
    results."""
    for number, hook in node.hooks or ():
        if number == AFTER:
            results = _replaced(hook, hook(tuple(results), tuple(gradients)), results)
    return results


def _replaced(hook: Any, found: Any, given: Sequence[Any]) -> Sequence[Any]:
    if found is None:
        return given
    listed = found if isinstance(found, tuple | list) else (found,)
    if len(listed) != len(given):
        raise AutogradError(
            f"{_name(hook)} returned {len(listed)} gradients; expected {len(given)}"
        )
    for each, before in zip(listed, given, strict=True):
        if each is not None and before is not None:
            _check(hook, each, before)
        elif each is not None and not isinstance(each, Variable):
            raise _no_tensor(hook, each)
    return listed


def _check(hook: Any, replaced: Any, given: Any) -> None:
    """Raise AutogradError if a hook's result cannot replace the gradient."""
    if not isinstance(replaced, Variable):
        raise _no_tensor(hook, replaced)
    one, other = replaced.array, given.array
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise AutogradError(
            f"{_name(hook)} returned a gradient of shape {list(one.shape)} and type {one.dtype} in "
            f"the place of one of shape {list(other.shape)} and type {other.dtype}"
        )


def _check_device(hook: Any, replaced: Any, given: Any) -> None:
    """Raise AutogradError if a hook's result is on another device than the gradient it replaces.

    Results of posthooks are exempt: the engine moves them to the tensor's device or rejects them.
    """
    there, before = device_of(replaced.array), device_of(given.array)
    if there != before:
        raise AutogradError(
            f"{_name(hook)} returned a gradient on {there} in the place of one on {before}"
        )


def _no_tensor(hook: Any, found: Any) -> AutogradError:
    return AutogradError(
        f"{_name(hook)} returned {type(found).__name__}; expected a Tensor, or None"
    )


def _name(hook: Any) -> str:
    return f"the hook {getattr(hook, '__qualname__', type(hook).__qualname__)}"
