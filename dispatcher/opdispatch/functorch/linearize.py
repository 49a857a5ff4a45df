"""``linearize``: a function's derivative at one place, as a function of tangents.

The function is called once, at a level of forward mode that computes no tangents: it notes which
rule makes which tangents of which, with the values that the rule needs. That is done again, without
the function, for each direction.

Values that are noted must stay as they were. So the level writes to copies: what is written to, and
its views, get new values, and nothing outside of the function can tell.

Mirrors the meaning of ``linearize`` in ``torch/_functorch/eager_transforms.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.dual_tensor import DualArray
from opdispatch.functorch.forward_rule import Push
from opdispatch.functorch.jvp import DualCall
from opdispatch.functorch.jvp_layer import DualLayer
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.functorch.tree import rebuild
from opdispatch.local_state.lazy_imports import array_namespace


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return ``func(*primals)``, and a function from tangents of primals to those of results.

    The function may be called many times, and be transformed by ``vmap``; ``func`` is called once.
    Tangents have the shapes, types and devices of the primals. The rest is as for ``jvp``. As
    ``torch.func.linearize``.
    """
    if not primals:
        raise ArgumentError("linearize was given a function and no primals")
    numbers = tuple(range(len(primals)))
    call = DualCall(LinearizeLayer, func, primals, numbers, False, "linearize")
    starts = [Slot() for _ in call.inputs]
    call.run(starts)
    assert isinstance(call.layer, LinearizeLayer)
    steps = call.layer.steps
    ends = list(map(call.tangent_of, call.outputs))
    values = list(map(unwrap_dead, call.outputs))

    def push(*tangents: Any) -> Any:
        known = dict(zip(starts, call.checked(tangents, exact=True), strict=True))
        for step, given, made in steps:
            found = [_known(known, each) for each in given]
            if any(each is not None for each in found):
                _note(known, made, step(found))
        moved = [_known(known, end) for end in ends]
        return rebuild(
            call.output,
            [
                array_namespace().zeros_like(value) if tangent is None else tangent
                for value, tangent in zip(values, moved, strict=True)
            ],
        )

    return call.value(), push


class Slot:
    """Stands for a tangent that is computed later."""

    __slots__ = ()


class LinearizeLayer(DualLayer):
    """Notes how tangents are computed."""

    name = "linearize"

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.steps: list[tuple[Push, Sequence[Any], Sequence[Any]]] = []
        """Steps in order, with the slots of their inputs and outputs."""

    def push(
        self, step: Push, known: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        """Return slots for the tangents of ``results``."""
        made = [_slot_for(each) for each in results]
        self.steps.append((partial(step, *known), tangents, made))
        return made

    def keep_from_write(self, root: DualArray) -> None:
        """Copy the values of ``root`` and its views, so that writes go to the copies."""
        root.value = array_namespace().asarray(root.value, copy=True)
        for view in root.views():
            view.value = view.replay(root.value)


def _slot_for(result: Any) -> Any:
    if type(result) is list:
        return [_slot_for(each) for each in result]
    has_tangent = is_tensor(result) and result.dtype.kind in DIFFERENTIABLE_KINDS
    return Slot() if has_tangent else None


def _known(known: dict[Slot, Any], slot: Any) -> Any:
    """Return the tangent of a slot; of a list of slots, a list, or None if there is none in it."""
    if type(slot) is not list:
        return None if slot is None else known.get(slot)
    found = [_known(known, each) for each in slot]
    return found if any(each is not None for each in found) else None


def _note(known: dict[Slot, Any], slots: Any, tangents: Any) -> None:
    for slot, tangent in zip(slots, tangents, strict=True):
        if type(slot) is list:
            _note(known, slot, tangent)
        elif slot is not None and tangent is not None:
            known[slot] = tangent
