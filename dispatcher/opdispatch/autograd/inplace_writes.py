"""Recorded in-place writes: their checks, and the new history of the written tensor.

Mirrors ``check_inplace`` of ``torch/csrc/autograd/VariableTypeUtils.h`` and ``rebase_history`` of
``torch/csrc/autograd/variable.cpp``.
"""

from __future__ import annotations

from typing import Any

from opdispatch.autograd.autograd_meta import view_of
from opdispatch.autograd.node import Edge, Node
from opdispatch.autograd.variable import (
    Variable,
    edge_of,
    facts_of,
    meta_of,
    move_retained,
    renew_history,
    set_flag_of_views,
)
from opdispatch.autograd.view_nodes import CopySlices
from opdispatch.errors import AutogradError


def check_inplace(tensor: Any) -> None:
    """Raise AutogradError if a recorded in-place write to ``value`` is not allowed.

    It is not allowed to a leaf that requires gradients, to a view of one, to views that cannot be
    replayed, and to a plain array, which has no autograd state.
    """
    if not isinstance(tensor, Variable):
        raise AutogradError(
            "a write that is recorded cannot be to a plain array, which has no history",
            hint="make a Tensor of the array, or write under no_grad",
        )
    view = view_of(tensor)
    if view is not None and view.made_by:
        raise AutogradError(
            f"a view that {view.made_by} cannot be written to where gradients are recorded",
            hint="write to a copy of it",
        )
    if view is not None and tensor.requires_grad and view.base.is_leaf:
        raise AutogradError(
            "a view of a leaf that requires gradients cannot be written to",
            hint="do so under no_grad, or to a copy",
        )
    if tensor.requires_grad and tensor.is_leaf:
        raise AutogradError(
            "a leaf that requires gradients cannot be written to",
            hint="do so under no_grad, or to a copy",
        )


def is_of_leaf(tensor: Any) -> bool:
    """Return whether it is a leaf that requires gradients, or a view of one."""
    view = view_of(tensor)
    base = tensor if view is None else view.base
    return bool(base.requires_grad and base.is_leaf)


def rebase_history(tensor: Any, node: Node, number: int = 0, place: int = 0) -> None:
    """Make ``node`` the history of argument ``place``, which was written to and is result
    ``number``.

    For a view, the history of the base is changed instead; the node then has only that result.
    """
    view = view_of(tensor)
    if view is None:
        set_edge(tensor, (node, number))
        return
    base = view.base
    set_edge(base, (CopySlices(edge_of(base), facts_of(base), view.replay, node, place), 0))
    tensor.requires_grad_flag = True
    view.version = -1  # so that the view's own ``grad_fn`` is computed again
    if view.retained is not None:
        renew_history(tensor)


def set_edge(tensor: Any, edge: Edge) -> None:
    """Set the new history of a written tensor, and move its ``retain_grad`` hook to it."""
    meta = meta_of(tensor)
    before, meta.edge = meta.edge, edge
    move_retained(meta, before)
    tensor.requires_grad_flag = True
    set_flag_of_views(meta)
