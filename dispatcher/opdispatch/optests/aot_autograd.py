"""Tests an operator in transformed programs: functionalized, traced, and on fake tensors.

PyTorch's ``aot_autograd.py`` compares an eager call with a functionalized forward and backward
graph that AOTAutograd has traced. Here, three separate checks replace it: ``functionalize``, a
traced graph, and a forward and backward pass on fake tensors. There are no symbolic sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from opdispatch.autograd.engine import grad
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.functorch.functionalization import functionalize
from opdispatch.local_state.grad_mode import enable_grad
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.modes.fake_tensor import FakeTensorMode
from opdispatch.optests.fake_tensor import NOT_FAKED, call_with_fakes, compare_facts
from opdispatch.optests.sample import Sample, array_of, check_close, off_leaf, tensors_in
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing import trace
from opdispatch.tracing.pytree import leaves

_WHAT = ("results", "tensors that were given, afterwards,", "gradients")


class _Outcome(NamedTuple):
    """The results of a call, its arguments after the call, and the gradients."""

    results: Any
    arguments: Any
    gradients: list[Any]


def check_aot_dispatch(sample: Sample) -> None:
    """Check that the operator behaves the same in transformed programs.

    Compares the results, the mutated arguments and, if an argument requires gradients, the
    gradients of the sum of the results. Raises OpCheckError, and the operator's own errors.
    """
    op = sample.op

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    expected = _outcome(sample, call)
    functional = _outcome(sample, functionalize(call))
    for what, found, wanted in zip(_WHAT, functional, expected, strict=True):
        check_close(found, wanted, sample.tolerance, f"{what} of {op.name}", "when functionalized")
    with enable_grad(), sample.same_random_numbers():
        args, kwargs = sample.copies(off_leaf)
        graph = trace(call, *args, **kwargs)
    replayed = _outcome(sample, graph)
    for what, found, wanted in zip(_WHAT, replayed, expected, strict=True):
        check_close(found, wanted, sample.tolerance, f"{what} of {op.name}", "in a traced graph")
    if NOT_FAKED.isdisjoint(op.tags) and sample.is_dense:
        mode = FakeTensorMode()
        with mode:
            faked = _outcome(
                sample,
                lambda *args, **kwargs: call_with_fakes(sample, args, kwargs),
                mode.from_tensor,
            )
        pairs = zip(faked.gradients, expected.gradients, strict=True)
        for place, (found, wanted) in enumerate(pairs):
            compare_facts(found, wanted, f"gradient {place} of {op.name}")


def _outcome(
    sample: Sample,
    function: Callable[..., Any],
    change: Callable[[Any], Any] = lambda each: each,
) -> _Outcome:
    inputs: list[Tensor] = []

    def given(tensor: Any) -> Any:
        leaf = change(tensor)
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            inputs.append(leaf)
        return off_leaf(leaf)

    with enable_grad(), sample.same_random_numbers():
        args, kwargs = sample.copies(given)
        results = function(*args, **kwargs)
        gradients = _gradients(results, inputs)
    return _Outcome(
        [_detached(each) for each in leaves(results)],
        [_detached(each) for each in tensors_in((args, kwargs))],
        gradients,
    )


def _gradients(results: Any, inputs: list[Tensor]) -> list[Any]:
    outputs = [
        each
        for each in tensors_in(results)
        if isinstance(each, Tensor)
        and each.requires_grad
        and each.array.dtype.kind in DIFFERENTIABLE_KINDS
    ]
    if not outputs or not inputs:
        return []
    ones = [array_namespace().ones_like(each) for each in outputs]
    return list(grad(outputs, inputs, ones, allow_unused=True))


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return value if not isinstance(value, np.generic) else np.asarray(array_of(value))
