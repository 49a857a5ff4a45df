"""Numerical gradient checks: compare gradients with finite differences.

Mirrors the slow mode of ``torch/autograd/gradcheck.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from opdispatch import arrays
from opdispatch.autograd.engine import grad
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS, Variable
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import enable_grad, no_grad

Function = Callable[..., Any]
Matrix: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


def gradcheck(
    function: Function,
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Return whether the gradients of ``function(*inputs)`` match finite differences.

    Checks all input tensors that require gradients. They should be float64 or complex128; others
    cause a warning, since their finite differences are inaccurate. The function returns a tensor or
    a sequence with tensors. The real and imaginary part of each element are perturbed by ``eps`` in
    both directions, and gradients must agree within ``atol + rtol * abs(difference)``. A mismatch
    raises an AutogradError with both Jacobians, or returns False without ``raise_exception``.
    Equivalent to ``torch.autograd.gradcheck``.

    A Jacobian has a row for each real number of the output and a column for each real number of the
    input; a complex element counts as two, the real part first.
    """
    given = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    checked = [n for n, each in enumerate(given) if _requires_grad(each)]
    if not checked:
        raise AutogradError("gradcheck was given no input that requires a gradient")
    for n in checked:
        if given[n].dtype not in (np.float64, np.complex128):
            warnings.warn(
                f"input {n} of gradcheck is of {given[n].dtype}, of which differences say little; "
                "expected float64 or complex128",
                stacklevel=2,
            )
    try:
        for n_out, output in enumerate(_outputs_of(function, given)):
            exact = _gradients_of(output, [given[n] for n in checked])
            for n, jacobian in zip(checked, exact, strict=True):
                found = _differences_of(function, given, n, n_out, eps)
                if not np.allclose(jacobian, found, rtol, atol):
                    raise AutogradError(
                        f"the derivative of output {n_out} with respect to input {n} is not what "
                        f"differences say\ndifferences:\n{found}\ngradients:\n{jacobian}"
                    )
    except AutogradError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    function: Function,
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
) -> bool:
    """Return whether the second derivatives of ``function(*inputs)`` match finite differences.

    Runs ``gradcheck`` on the gradients. ``grad_outputs`` are the gradients of the outputs and may
    require gradients; by default they are random and do. Equivalent to
    ``torch.autograd.gradgradcheck``.
    """
    given = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    if grad_outputs is None:
        random = np.random.default_rng(0)
        gradients = [_random_like(each, random) for each in _outputs_of(function, given)]
    else:
        gradients = list(grad_outputs) if isinstance(grad_outputs, tuple | list) else [grad_outputs]
    count = len(gradients)

    def gradients_of(*both: Any) -> Sequence[Any]:
        values = both[:-count]
        with enable_grad():  # also if only the value is needed
            outputs = _outputs_of(function, values)
            wanted = [each for each in values if _requires_grad(each)]
            found = grad(outputs, wanted, both[-count:], create_graph=True, allow_unused=True)
        return [each for each in found if each is not None]

    return gradcheck(
        gradients_of,
        (*given, *gradients),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
    )


def _requires_grad(value: Any) -> bool:
    return isinstance(value, Variable) and value.requires_grad


def _outputs_of(function: Function, inputs: Sequence[Any]) -> list[Any]:
    """Return the differentiable tensors among the results.

    Plain arrays are included: if a call was not recorded, its result is the kernel's own.
    """
    result = function(*inputs)
    results = result if isinstance(result, tuple | list) else [result]
    given: Any = next(each for each in inputs if isinstance(each, Variable))
    tensors = [
        type(given)(each) if arrays.find_backend(type(each)) is not None else each
        for each in results
    ]
    return [
        each
        for each in tensors
        if isinstance(each, Variable) and each.array.dtype.kind in DIFFERENTIABLE_KINDS
    ]


def _host(tensor: Any) -> np.ndarray[Any, Any]:
    return np.array(arrays.on_host(tensor.array))


def _like(tensor: Any, array: np.ndarray[Any, Any], *, requires_grad: bool = False) -> Any:
    made = type(tensor)(array).to(tensor.device)
    return made.requires_grad_(requires_grad)


def _random_like(tensor: Any, random: np.random.Generator) -> Any:
    values = random.standard_normal(tensor.shape)
    if tensor.dtype.kind == "c":
        values = values + 1j * random.standard_normal(tensor.shape)
    return _like(tensor, np.asarray(values).astype(tensor.dtype), requires_grad=True)


def _directions(dtype: np.dtype[Any]) -> tuple[complex, ...]:
    return (1, 1j) if dtype.kind == "c" else (1,)


def _as_reals(array: np.ndarray[Any, Any]) -> Matrix:
    """Return the numbers of an array, real and imaginary parts one after the other."""
    flat = np.atleast_1d(array.ravel())
    if flat.dtype.kind == "c":
        flat = np.stack([flat.real, flat.imag], -1).ravel()
    return flat.astype(np.float64)


def _gradients_of(output: Any, inputs: Sequence[Any]) -> list[Matrix]:
    """Return the Jacobian with respect to each input; one backward pass computes one row."""
    rows: list[list[Matrix]] = [[] for _ in inputs]
    for place in range(output.size):
        for direction in _directions(output.dtype):
            one = np.zeros(output.shape, output.dtype)
            one.reshape(-1)[place] = direction
            found: Sequence[Any] = [None] * len(inputs)
            if output.requires_grad:
                found = grad(
                    output, inputs, _like(output, one), retain_graph=True, allow_unused=True
                )
            for row, each, gradient in zip(rows, inputs, found, strict=True):
                zeros = np.zeros(each.shape, each.dtype)
                row.append(_as_reals(zeros if gradient is None else _host(gradient)))
    widths = [each.size * len(_directions(each.dtype)) for each in inputs]
    return [np.reshape(row, (len(row), width)) for row, width in zip(rows, widths, strict=True)]


def _differences_of(
    function: Function, inputs: Sequence[Any], n: int, n_out: int, eps: float
) -> Matrix:
    """Return the Jacobian of one output with respect to one input from finite differences."""
    base, columns = _host(inputs[n]), []

    def value_at(place: int, step: complex) -> Matrix:
        moved = base.copy()
        moved.reshape(-1)[place] += step
        there = _like(inputs[n], moved, requires_grad=True)
        with no_grad():
            outputs = _outputs_of(function, [*inputs[:n], there, *inputs[n + 1 :]])
            return _as_reals(_host(outputs[n_out]))

    for place in range(base.size):
        for direction in _directions(base.dtype):
            step = eps * direction
            columns.append((value_at(place, step) - value_at(place, -step)) / (2 * eps))
    rows = _as_reals(_host(_outputs_of(function, inputs)[n_out])).size
    return np.reshape(columns, (len(columns), rows)).T
