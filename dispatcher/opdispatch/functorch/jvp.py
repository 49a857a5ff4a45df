"""``jvp``: Jacobian-vector products by forward-mode differentiation.

The function is called once, at a forward-mode level (``jvp_layer.py``). ``no_grad`` has no effect
on tangents, since it controls only what is recorded for backward passes.

Mirrors ``jvp`` of ``torch/_functorch/eager_transforms.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import as_tensor, is_tensor
from opdispatch.functorch.dual_tensor import dual_of, make_dual
from opdispatch.functorch.dynamic_layer import next_level, pushed
from opdispatch.functorch.grad_transform import Argnums, differentiable, places_of
from opdispatch.functorch.jvp_layer import DualLayer, JvpLayer
from opdispatch.functorch.pytree import describe, leaves, leaves_as_in, map_tree, rebuild
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.local_state.grad_mode import inference_mode, is_inference_mode_enabled
from opdispatch.local_state.lazy_imports import array_namespace


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """Return ``func(*primals)`` and the Jacobian-vector product of ``func`` with ``tangents``.

    ``tangents`` have the structure, shapes and dtypes of ``primals``. The product has the structure
    and shapes of the results; it is zero for results that do not depend on ``primals``, which are
    an error with ``strict=True``. With ``has_aux``, ``func`` returns a pair ``(output, aux)``, and
    ``aux`` is returned as the third value.

    ``no_grad`` within ``func`` does not affect tangents. Raises ArgumentError for unsuitable
    arguments and results, and AutogradError for an operator without a derivative. Equivalent to
    ``torch.func.jvp``.
    """
    if not isinstance(primals, tuple) or not primals:
        raise ArgumentError(
            f"jvp was given the primals {describe(primals)}; expected a tuple of the function's "
            "positional arguments, at least one"
        )
    call = DualCall(JvpLayer, func, primals, tuple(range(len(primals))), has_aux, "jvp")
    call.run(call.checked(tangents))
    if strict:
        call.check_dependence()
    moved = rebuild(call.output, call.tangents())
    value = call.value()
    return (value, moved, call.aux()) if has_aux else (value, moved)


class DualCall:
    """A function call at its own forward-mode level."""

    def __init__(
        self,
        layer_type: Callable[[int], DualLayer],
        func: Callable[..., Any],
        args: tuple[Any, ...],
        argnums: Argnums,
        has_aux: bool,
        transform: str,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Raise ArgumentError for arguments that are not differentiable."""
        self.name = getattr(func, "__name__", type(func).__name__)
        self._transform = transform
        self._func, self._args, self._kwargs = func, args, kwargs or {}
        self._has_aux = has_aux
        self._layer_type = layer_type
        self._places = places_of(argnums, len(args), transform, self.name)
        self.trees = tuple([args[place] for place in self._places])
        """The arguments with tangents, in their containers."""
        self.inputs = [
            as_tensor(differentiable(each, transform, self.name)) for each in leaves(self.trees)
        ]
        """The tensors with tangents."""
        self.output: Any = None
        self._aux: Any = None

    def run(self, tangents: Sequence[Any]) -> None:
        """Call the function. Raises ArgumentError for results that do not fit."""
        layer = self.layer = self._layer_type(next_level())
        # Inference mode around the transform affects only its results, as no_grad does.
        outside = inference_mode(False) if is_inference_mode_enabled() else nullcontext()
        with pushed(layer), outside:
            duals = [
                make_dual(layer, primal, tangent, is_immutable=True)
                for primal, tangent in zip(self.inputs, tangents, strict=True)
            ]
            moving = iter(rebuild(self.trees, duals))
            constant = functools.partial(_constant, layer)
            given = [
                next(moving) if place in self._places else map_tree(constant, each)
                for place, each in enumerate(self._args)
            ]
            result = self._func(*given, **map_tree(constant, self._kwargs))
        if self._has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise ArgumentError(
                    f"{self._transform} with has_aux=True requires a function that returns a pair; "
                    f"{self.name} returned {describe(result)}"
                )
            result, self._aux = result
        self.output = result
        self.outputs = leaves(result)
        if not self.outputs or not all(map(is_tensor, self.outputs)):
            raise ArgumentError(
                f"{self._transform} requires a function that returns tensors; {self.name} "
                f"returned {describe(result)}"
            )

    def value(self) -> Any:
        """Return the function's result."""
        return map_tree(unwrap_dead, self.output)

    def aux(self) -> Any:
        """Return the auxiliary value of a function called with ``has_aux``."""
        return map_tree(unwrap_dead, self._aux)

    def tangents(self) -> list[Any]:
        """Return the tangents of the results, in order."""
        found = map(self.tangent_of, self.outputs)
        return [
            array_namespace().zeros_like(unwrap_dead(output)) if tangent is None else tangent
            for output, tangent in zip(self.outputs, found, strict=True)
        ]

    def tangent_of(self, output: Any) -> Any:
        """Return the tangent of a result; None if it does not depend on the arguments."""
        dual = dual_of(output, self.layer)
        return None if dual is None else dual.tangent

    def check_dependence(self) -> None:
        """Raise ArgumentError if a result does not depend on the arguments."""
        for place, output in enumerate(self.outputs):
            if self.tangent_of(output) is None:
                raise ArgumentError(
                    f"{self._transform} with strict=True is of a function whose results depend on "
                    f"its arguments, and result {place} of {self.name} does not"
                )

    def checked(self, tangents: Any, *, exact: bool = False) -> list[Any]:
        """Return the tangents as tensors, in order. Raises ArgumentError if they do not fit.

        Unless ``exact``, those of another floating-point type are converted.
        """
        found = leaves_as_in(self.trees, tangents)
        if found is None:
            raise ArgumentError(
                f"{self._transform} was given the tangents {describe(tangents)} for the primals "
                f"{describe(map_tree(as_tensor_or_same, self.trees))}; expected the same containers"
            )
        return [
            self._fitting(place, tangent, primal, exact)
            for place, (tangent, primal) in enumerate(zip(found, self.inputs, strict=True))
        ]

    def _fitting(self, place: int, tangent: Any, primal: Any, exact: bool) -> Any:
        what = f"tangent {place} of {self._transform}"
        if isinstance(tangent, float | complex):
            tangent = np.asarray(tangent)
        if not is_tensor(tangent):
            raise ArgumentError(f"{what} is not a tensor but {type(tangent).__name__}")
        tangent, dtype = as_tensor(tangent), primal.dtype
        if tuple(tangent.shape) != tuple(primal.shape):
            raise ArgumentError(
                f"{what} has shape {list(tangent.shape)}; expected {list(primal.shape)}, that of "
                "its primal"
            )
        if tangent.device != primal.device:
            raise ArgumentError(
                f"{what} is on {tangent.device}; expected {primal.device}, where its primal is"
            )
        if tangent.dtype == dtype:
            return tangent
        is_lost = tangent.dtype.kind == "c" and dtype.kind != "c"
        if exact or is_lost or tangent.dtype.kind not in DIFFERENTIABLE_KINDS:
            raise ArgumentError(f"{what} is {tangent.dtype}; expected {dtype}, as its primal is")
        return array_namespace().astype(tangent, dtype)


def as_tensor_or_same(value: Any) -> Any:
    """Convert an array to a Tensor; return anything else unchanged."""
    return as_tensor(value) if is_tensor(value) else value


def _constant(layer: DualLayer, value: Any) -> Any:
    return make_dual(layer, value) if is_tensor(value) else value
