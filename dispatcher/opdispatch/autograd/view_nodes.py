"""Nodes for writes to views and their bases. See Note [Views] in ``variable.py``.

Mirrors ``CopySlices`` of ``torch/csrc/autograd/functions/tensor.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch.arrays.lazy_array import LazyArray
from opdispatch.arrays.level_array import LevelArray, is_batched
from opdispatch.arrays.math_bits import stored
from opdispatch.autograd.autograd_meta import (
    DifferentiableViewMeta,
    Replay,
    make_view,
    replay,
    view_of,
)
from opdispatch.autograd.node import Edge, Facts, Gradients, Node
from opdispatch.autograd.variable import (
    copy_of,
    edge_of,
    facts_of,
)
from opdispatch.local_state.grad_mode import enable_grad, is_grad_enabled
from opdispatch.local_state.lazy_imports import array_namespace


class ReplayedView(Node):
    """Node of a view whose base has a new history; scatters gradients into the base's gradient."""

    def __init__(self, view: DifferentiableViewMeta) -> None:
        super().__init__((edge_of(view.base),), (facts_of(view.base),))
        self._replay = view.replay

    @property
    def name(self) -> str:
        """Its name."""
        return "ReplayedView"

    def apply(self, grads: list[Any]) -> Gradients:
        """Return zeros like the base with the gradient at the position of the view."""
        [facts] = self.facts
        assert facts is not None
        return (place_in(self._replay, facts, grads[0]),)


class CopySlices(Node):
    """Node that replays a write to a view onto its base.

    ``written`` is the node of the writing operator. Its edge at index ``place``, that of the view,
    is replaced by this node's.
    """

    def __init__(
        self, base: Edge | None, facts: Facts, steps: Replay | None, written: Node, place: int
    ) -> None:
        edges, all_facts = [*written.edges], [*written.facts]
        edges[place], all_facts[place] = base, facts
        super().__init__(edges, all_facts)
        self._replay = steps
        self._written = written
        self._place = place

    @property
    def name(self) -> str:
        """Its PyTorch name."""
        return "CopySlices"

    def apply(self, grads: list[Any]) -> Gradients:
        """Return the gradients of the base before the write, and of the written value."""
        [grad] = grads
        of_view = replay(self._replay, grad)
        found, place = [*self._written.apply([of_view])], self._place
        first, found[place] = found[place], None
        if self.edges[place] is None:
            return found
        kept = with_room_for(+grad if grad.requires_grad else copy_of(grad), first)
        here = replay(self._replay, kept)
        if shares_elements(kept, here):
            here[...] = 0.0 if first is None else first
            found[place] = kept
            return found
        # ``reshape`` copies a gradient whose memory order differs from the base's.
        change = -of_view if first is None else first - of_view
        facts = self.facts[place]
        assert facts is not None
        found[place] = grad + place_in(self._replay, facts, change)
        return found

    def release(self) -> None:
        """Release the values that the operator's node keeps."""
        self._written.release()


def place_in(steps: Replay | None, facts: Facts, gradient: Any) -> Any:
    """Scatter a gradient into zeros like the base, by the derivative of the view calls."""
    from opdispatch.autograd.engine import grad

    shape, dtype, device = facts
    whole = array_namespace().zeros(shape, dtype=dtype, device=device)
    whole.requires_grad_flag = True
    with enable_grad():
        part = replay(steps, whole)
    [placed] = grad(part, whole, gradient, create_graph=is_grad_enabled())
    return placed


def with_room_for(whole: Any, *parts: Any) -> Any:
    """Return a tensor to which ``parts`` can be written under ``vmap``.

    This is ``whole`` if no part is batched, otherwise a copy that is batched at all of their
    levels.
    """
    xp = array_namespace()
    for each in parts:
        if is_batched(each):
            false = xp.any(xp.zeros_like(each, dtype=xp.bool))
            is_bool = whole.dtype.kind == "b"
            whole = whole | false if is_bool else whole + xp.astype(false, whole.dtype)
    return whole


def shares_elements(base: Any, other: Any) -> bool:
    """Return whether a view shares memory with its base.

    It may not: some array libraries copy in view operators.
    """
    whole, part = base.array, other.array
    if part is whole:
        return True
    if type(part) is np.ndarray and type(whole) is np.ndarray:
        owner = part.base
        if owner is None or owner is whole or owner is whole.base:  # true also without elements
            return owner is not None
        return bool(np.may_share_memory(part, whole))
    if isinstance(part, LevelArray) and isinstance(whole, LevelArray):
        below, part_below = whole.value, part.value
        # Values of functional views may be copies, but writes still propagate.
        if (storage := getattr(below, "storage", None)) is not None:
            return storage is getattr(part_below, "storage", None)
        return shares_elements(below, part_below)
    if isinstance(whole, LazyArray) or isinstance(part, LazyArray):
        whole, part = stored(whole), stored(part)
        if type(part) is np.ndarray and type(whole) is np.ndarray:
            return bool(np.may_share_memory(part, whole))
        if part is whole:
            return True
    return getattr(part, "base", None) is not None


def view_of_itself(tensor: Any, made_by: str) -> Any:
    """Return a view of the entire tensor, without a history."""
    view = tensor.detach_here()
    outer = view_of(tensor)
    base, steps = (tensor, None) if outer is None else (outer.base, outer.replay)
    make_view(view, base, steps, made_by)
    return view


DifferentiableViewMeta.make_node = ReplayedView
