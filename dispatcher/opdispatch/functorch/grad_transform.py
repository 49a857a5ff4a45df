"""``grad``, ``grad_and_value``, ``vjp``: derivatives of functions.

The function is called at a new level with wrapped arguments. After the level has ended, the
backward pass runs at the levels below, which record it in turn if they compute higher derivatives.

Mirrors ``torch/_functorch/eager_transforms.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.autograd.engine import grad as gradients_of
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import as_tensor, is_tensor
from opdispatch.functorch.dynamic_layer import next_level, pushed
from opdispatch.functorch.grad_layer import GradLayer
from opdispatch.functorch.pytree import describe, leaves, map_tree, rebuild
from opdispatch.functorch.tensor_wrapper import make_wrapper, unwrap_dead
from opdispatch.local_state.grad_mode import enable_grad, inference_mode, is_grad_enabled
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.tensors.tensor import Tensor

Argnums = int | tuple[int, ...]


def grad(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient of ``func``, which must return a scalar tensor.

    ``argnums`` selects one or several positional arguments to differentiate with respect to:
    tensors, Python floats and complex numbers, or tuples, lists and dicts of them. The gradient has
    their structure; it is a tuple if ``argnums`` is one. With ``has_aux``, ``func`` returns a pair
    ``(output, aux)``, and the new function returns ``(gradient, aux)``. Raises ArgumentError for
    unsuitable arguments and results, and any error of the backward pass. Equivalent to
    ``torch.func.grad``.
    """
    with_value = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        found, value = with_value(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return gradient


def grad_and_value(
    func: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the gradient, like ``grad``, and the result of ``func``."""

    @functools.wraps(func)
    def gradient_and_value(*args: Any, **kwargs: Any) -> Any:
        recorded = Recorded(func, args, kwargs, argnums, has_aux, "grad")
        output = recorded.output
        if not is_tensor(output):
            raise ArgumentError(
                f"grad requires a function that returns a tensor; {recorded.name} returned "
                f"{describe(output)}"
            )
        if output.size != 1 or output.ndim:
            raise ArgumentError(
                f"grad requires a function that returns a scalar tensor of shape []; "
                f"{recorded.name} returned one of shape {list(output.shape)}",
                hint="reduce the result with sum, or use jacrev",
            )
        found = recorded.gradients([output], [None], keep=False)
        value = unwrap_dead(output)
        aux = map_tree(unwrap_dead, recorded.aux)
        return recorded.by_argument(found), (value, aux) if has_aux else value

    return gradient_and_value


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """Return ``func(*primals)`` and a function that computes vector-Jacobian products.

    That function takes the gradients of the results and returns those of the primals; it may be
    called repeatedly and under ``vmap``. With ``has_aux``, ``func`` returns a pair ``(output,
    aux)``, and ``aux`` is returned as the third value. Equivalent to ``torch.func.vjp``.
    """
    if not primals:
        raise ArgumentError("vjp was given no primals; expected at least one")
    argnums = tuple(range(len(primals)))
    recorded = Recorded(func, primals, {}, argnums, has_aux, "vjp")
    outputs = recorded.tensors_of_output()

    def back(*cotangents: Any) -> Any:
        tree = cotangents[0] if len(cotangents) == 1 else cotangents
        given = leaves(tree)
        if len(given) != len(outputs):
            raise ArgumentError(
                f"the function of vjp was given {len(given)} gradients; expected {len(outputs)}, "
                f"as {recorded.name} returned {describe(recorded.output)}"
            )
        return recorded.by_argument(recorded.gradients(outputs, list(map(as_tensor, given))))

    value = map_tree(unwrap_dead, recorded.output)
    return (value, back, map_tree(unwrap_dead, recorded.aux)) if has_aux else (value, back)


class Recorded:
    """A finished call of a function at its own level, with the recorded graph."""

    def __init__(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        argnums: Argnums,
        has_aux: bool,
        transform: str,
    ) -> None:
        self.name = getattr(func, "__name__", type(func).__name__)
        self._transform = transform
        self.argnums = argnums
        numbers = places_of(argnums, len(args), transform, self.name)
        layer = GradLayer(next_level())  # notes whether gradients are recorded around it
        # Inference mode and kernels below Autograd have its keys switched off.
        with pushed(layer), inference_mode(False), enable_grad():
            given = [
                map_tree(
                    functools.partial(self._variable if n in numbers else _constant, layer), each
                )
                for n, each in enumerate(args)
            ]
            named = map_tree(functools.partial(_constant, layer), kwargs)
            result = func(*given, **named)
        self.trees = [given[n] for n in numbers]
        """The arguments to differentiate with respect to, in their containers."""
        self.inputs: list[Any] = leaves(self.trees)
        self.aux: Any = None
        if has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise ArgumentError(
                    f"{transform} with has_aux=True requires a function that returns a pair; "
                    f"{self.name} returned {describe(result)}"
                )
            result, self.aux = result
        self.output = result

    def tensors_of_output(self) -> list[Any]:
        """Return the results as a list. Raises ArgumentError if one is not a tensor."""
        found = leaves(self.output)
        if not found or not all(map(is_tensor, found)):
            raise ArgumentError(
                f"{self._transform} requires a function that returns tensors; {self.name} "
                f"returned {describe(self.output)}"
            )
        return found

    def gradients(
        self, outputs: Sequence[Any], cotangents: Sequence[Any], *, keep: bool = True
    ) -> list[Any]:
        """Return the gradients of all inputs: zeros where the outputs do not depend on them."""
        pairs = [
            pair
            for pair in zip(outputs, cotangents, strict=True)
            if type(pair[0]) is Tensor and pair[0].requires_grad
        ]
        found: Sequence[Any] = [None] * len(self.inputs)
        if pairs:
            found = gradients_of(
                [output for output, _ in pairs],
                self.inputs,
                [cotangent for _, cotangent in pairs],
                retain_graph=keep,
                create_graph=is_grad_enabled(),
                allow_unused=True,
            )
        return [
            array_namespace().zeros_like(unwrap_dead(each))
            if gradient is None
            else unwrap_dead(gradient)
            for each, gradient in zip(self.inputs, found, strict=True)
        ]

    def by_argument(self, gradients: list[Any]) -> Any:
        """Return gradients in the containers of the arguments.

        Returns a tuple if ``argnums`` was one, otherwise the gradient of the only argument.
        """
        found = rebuild(self.trees, gradients)
        return found[0] if isinstance(self.argnums, int) else tuple(found)

    def _variable(self, layer: GradLayer, value: Any) -> Any:
        wrapper = make_wrapper(layer, differentiable(value, self._transform, self.name))
        wrapper.requires_grad_flag = True
        return wrapper


def places_of(argnums: Argnums, count: int, transform: str, name: str) -> tuple[int, ...]:
    """Return the non-negative indices that ``argnums`` selects from ``count`` arguments.

    Raises ArgumentError if ``argnums`` has another type, is out of range or repeats an index.
    """
    numbers: Any = (argnums,) if type(argnums) is int else argnums
    if not isinstance(numbers, tuple) or not all(type(n) is int for n in numbers):
        raise ArgumentError(
            f"{transform} was given argnums={argnums!r}; expected an int, or a tuple of ints"
        )
    wrong = [n for n in numbers if not -count <= n < count]
    if wrong or not numbers:
        raise ArgumentError(
            f"{transform} was given argnums={argnums!r}, but {name} was called with {count} "
            "positional arguments"
        )
    places = tuple(n % count for n in numbers)
    if len(set(places)) < len(places):
        raise ArgumentError(
            f"{transform} was given argnums={argnums!r}; expected each argument only once"
        )
    return places


def differentiable(value: Any, transform: str, name: str) -> Any:
    """Return an argument to differentiate with respect to, as a tensor or array.

    Raises ArgumentError unless its dtype is floating-point or complex.
    """
    if isinstance(value, float | complex):
        value = np.asarray(value)
    if not is_tensor(value) or value.dtype.kind not in DIFFERENTIABLE_KINDS:
        kind = value.dtype if is_tensor(value) else type(value).__name__
        raise ArgumentError(
            f"{transform} differentiates {name} with respect to floating-point or complex tensors, "
            f"but an argument is {kind}",
            hint="select the arguments to differentiate with respect to by argnums",
        )
    return value


def _constant(layer: GradLayer, value: Any) -> Any:
    return make_wrapper(layer, value) if is_tensor(value) else value
