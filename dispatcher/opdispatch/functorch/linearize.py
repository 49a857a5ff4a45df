"""``linearize``: the derivative of a function at one point, as a function of tangents.

The function is called once, at a forward-mode level that computes no tangents but records each rule
with its inputs, outputs and the values it needs. The recorded steps are then replayed for each
direction without calling the function again.

Recorded values must not change. The level therefore writes to copies: a tensor that is written to
gets a new value, and so do its views, which is not visible outside the function.

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
from opdispatch.functorch.pytree import rebuild
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.local_state.lazy_imports import array_namespace


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return ``func(*primals)`` and a function that maps tangents of primals to tangents of
    results.

    That function may be called repeatedly and under ``vmap``; ``func`` is called once. Tangents
    must have the shapes, dtypes and devices of the primals. Errors are those of ``jvp``. Equivalent
    to ``torch.func.linearize``.
    """
    if not primals:
        raise ArgumentError("linearize was given no primals; expected at least one")
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
    """Placeholder for a tangent that is computed on replay."""

    __slots__ = ()


class LinearizeLayer(DualLayer):
    """A forward-mode level that records the computation of tangents."""

    name = "linearize"

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.steps: list[tuple[Push, Sequence[Any], Sequence[Any]]] = []
        """Recorded steps in order, with the slots of their inputs and outputs."""

    def push(
        self, step: Push, known: Sequence[Any], tangents: Sequence[Any], results: Sequence[Any]
    ) -> Sequence[Any]:
        """Record a step and return slots for the tangents of ``results``."""
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
    """Return the tangent of a slot; for a list of slots, a list, or None if all tangents are
    None."""
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
