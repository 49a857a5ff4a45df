"""``linearize``, ``jvp``: derivatives of functions along directions.

There is no forward mode in the graph. The way back is linear in the gradients that it begins with,
and its derivative with respect to these is the way forward. So a function is recorded at one level,
its way back at a second one, and tangents go back through that:

    f(x)  ->  u -> J(x)^H u  ->  v -> J(x) v

This is exact, and needs no formulas beyond those of second derivatives. It has the price of two
recordings and one way back, of which ``linearize`` pays the first two once. The gradients ``u`` are
zeros: nothing depends on them.

Mirrors the meaning of ``jvp`` and ``linearize`` in ``torch/_functorch/eager_transforms.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import as_tensor, is_tensor, namespace
from opdispatch.functorch.grad_layer import JvpLayer
from opdispatch.functorch.grad_transform import Argnums, Recorded
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.functorch.tree import describe, leaves, leaves_as_in, map_tree, rebuild
from opdispatch.tensor import Tensor


def jvp(
    func: Callable[..., Any],
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple[Any, ...]:
    """``func(*primals)``, and how fast it changes where ``primals`` move with speed ``tangents``.

    ``tangents`` are tensors of the shapes of ``primals``, in the same containers, and so is the
    second result: the Jacobian of ``func`` times ``tangents``, zeros for results that do not
    depend on ``primals``; those are refused if ``strict``. With ``has_aux``, ``func`` returns a
    pair, whose second is returned third, as it is.

    It is computed by reverse mode, as the derivative of the way back, and costs about three times
    what ``vjp`` does. ``no_grad`` in ``func`` does not stop it. Raises ArgumentError for arguments
    and results that do not fit, and AutogradError for an operator that has no derivative, or whose
    derivative has none. As ``torch.func.jvp``.
    """
    if not isinstance(primals, tuple) or not primals:
        raise ArgumentError(
            f"jvp was given the primals {describe(primals)}; expected a tuple of the function's "
            "positional arguments, at least one"
        )
    linear = Linearized(func, primals, tuple(range(len(primals))), has_aux, "jvp")
    if strict:
        linear.check_dependence()
    pushed = linear.push(linear.checked(tangents))
    value = linear.value()
    return (value, pushed, linear.aux()) if has_aux else (value, pushed)


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """``func(*primals)``, and a function from tangents of the primals to those of the results.

    The function may be called many times, and be transformed by ``vmap``; ``func`` is called once.
    Tangents have the shapes, types and devices of the primals. The rest is as for ``jvp``. As
    ``torch.func.linearize``.
    """
    if not primals:
        raise ArgumentError("linearize was given a function and no primals")
    linear = Linearized(func, primals, tuple(range(len(primals))), False, "linearize")

    def push(*tangents: Any) -> Any:
        return linear.push(linear.checked(tangents, exact=True))

    return linear.value(), push


class Linearized:
    """A function about some arguments: its value there, and a way forward for tangents."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        argnums: Argnums,
        has_aux: bool,
        transform: str,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._transform = transform
        self._recorded = Recorded(func, args, kwargs or {}, argnums, has_aux, transform, JvpLayer)
        self.outputs = self._recorded.tensors_of_output()
        self._dependent = [
            place
            for place, output in enumerate(self.outputs)
            if type(output) is Tensor and output.requires_grad
        ]
        self._back: Recorded | None = None
        if self._dependent:
            ends = [self.outputs[place] for place in self._dependent]
            zeros = tuple(namespace().zeros_like(unwrap_dead(end)) for end in ends)
            numbers = tuple(range(len(zeros)))
            self._back = Recorded(
                lambda *given: self._recorded.gradients(ends, given),
                zeros,
                {},
                numbers,
                False,
                transform,
                JvpLayer,
            )

    def value(self) -> Any:
        """What the function returned."""
        return map_tree(unwrap_dead, self._recorded.output)

    def aux(self) -> Any:
        """What it returned beside that."""
        return map_tree(unwrap_dead, self._recorded.aux)

    @property
    def inputs(self) -> list[Any]:
        """The tensors that have tangents."""
        return self._recorded.inputs

    def check_dependence(self) -> None:
        """Raises ArgumentError if a result does not depend on the primals."""
        if len(self._dependent) < len(self.outputs):
            [place, *_] = set(range(len(self.outputs))) - set(self._dependent)
            raise ArgumentError(
                f"{self._transform} with strict=True is of a function whose results depend on its "
                f"arguments, and result {place} of {self._recorded.name} does not"
            )

    def checked(self, tangents: Any, *, exact: bool = False) -> list[Any]:
        """The tangents as tensors, in order. Raises ArgumentError if they are not as the primals.

        Unless ``exact``, those of another floating-point type are converted.
        """
        trees = tuple(self._recorded.trees)
        found = leaves_as_in(trees, tangents)
        if found is None:
            raise ArgumentError(
                f"{self._transform} was given the tangents {describe(tangents)} for the primals "
                f"{describe(trees)}; expected the same containers"
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
            raise ArgumentError(f"{what} is no tensor, but {type(tangent).__name__}")
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
        return namespace().astype(tangent, dtype)

    def push(self, tangents: Sequence[Any]) -> Any:
        """The tangents of the results, in their containers."""
        return rebuild(self._recorded.output, self.pushed(tangents))

    def pushed(self, tangents: Sequence[Any]) -> list[Any]:
        """The tangents of the results, in order."""
        found: dict[int, Any] = {}
        if self._back is not None:
            gradients = self._back.gradients(leaves(self._back.output), tangents)
            found = dict(zip(self._dependent, gradients, strict=True))
        return [
            found[place] if place in found else namespace().zeros_like(unwrap_dead(output))
            for place, output in enumerate(self.outputs)
        ]
