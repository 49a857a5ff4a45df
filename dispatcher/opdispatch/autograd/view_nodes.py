"""The history of views that are written to. See Note [Views] in ``variable.py``.

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
    """A view of a base whose history has changed: gradients go to where it is in the base."""

    def __init__(self, view: DifferentiableViewMeta) -> None:
        super().__init__((edge_of(view.base),), (facts_of(view.base),))
        self._replay = view.replay

    @property
    def name(self) -> str:
        """Its name."""
        return "ReplayedView"

    def apply(self, grads: list[Any]) -> Gradients:
        """Return zeros with the gradient where the view is."""
        [facts] = self.facts
        assert facts is not None
        return (place_in(self._replay, facts, grads[0]),)


class CopySlices(Node):
    """Node that replays a write to a view onto its base.

    ``written`` is the node of what wrote: of its own edge at ``place``, the view's, this node takes
    care.
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
        # Of a gradient whose elements are in another order than the base's, ``reshape`` copies.
        change = -of_view if first is None else first - of_view
        facts = self.facts[place]
        assert facts is not None
        found[place] = grad + place_in(self._replay, facts, change)
        return found

    def release(self) -> None:
        """Release the values that the operator's node keeps."""
        self._written.release()


def place_in(steps: Replay | None, facts: Facts, gradient: Any) -> Any:
    """Return zeros like the base, with a gradient where the view is, by the view's derivative."""
    from opdispatch.autograd.engine import grad

    shape, dtype, device = facts
    whole = array_namespace().zeros(shape, dtype=dtype, device=device)
    whole.requires_grad_flag = True
    with enable_grad():
        part = replay(steps, whole)
    [placed] = grad(part, whole, gradient, create_graph=is_grad_enabled())
    return placed


def with_room_for(whole: Any, *parts: Any) -> Any:
    """Return a tensor that samples of ``parts`` can be written to.

    That is ``whole`` where no part is batched by ``vmap``, and a copy that is batched at all of
    their levels otherwise.
    """
    xp = array_namespace()
    for each in parts:
        if is_batched(each):
            false = xp.any(xp.zeros_like(each, dtype=xp.bool))
            is_bool = whole.dtype.kind == "b"
            whole = whole | false if is_bool else whole + xp.astype(false, whole.dtype)
    return whole


def shares_elements(base: Any, other: Any) -> bool:
    """Return whether two tensors have the same elements, the second being a view of the first.

    An array library may have copied them.
    """
    whole, part = base.array, other.array
    if part is whole:
        return True
    if type(part) is np.ndarray and type(whole) is np.ndarray:
        owner = part.base
        if owner is None or owner is whole or owner is whole.base:  # also where there are none
            return owner is not None
        return bool(np.may_share_memory(part, whole))
    if isinstance(part, LevelArray) and isinstance(whole, LevelArray):
        below, part_below = whole.value, part.value
        # A functional tensor's views may be copies, and what is written to one is in the other.
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
    """Return a view of a whole tensor, without a history."""
    view = tensor.detach_here()
    outer = view_of(tensor)
    base, steps = (tensor, None) if outer is None else (outer.base, outer.replay)
    make_view(view, base, steps, made_by)
    return view


DifferentiableViewMeta.make_node = ReplayedView
