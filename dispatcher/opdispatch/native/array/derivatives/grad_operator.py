"""``array::grad``: the backward pass as an operator, run in the process that holds the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch import autograd
from opdispatch.errors import AutogradError
from opdispatch.library.library import Library
from opdispatch.tensors.tensor import Tensor

_SCHEMA = (
    "grad(Tensor[] outputs, Tensor[] inputs, Tensor?[] grad_outputs, *, "
    "bool? retain_graph=None, bool create_graph=False, bool allow_unused=False) -> Tensor?[]"
)


def register_grad(library: Library) -> None:
    """Define ``grad`` in ``library``."""
    library.define(_SCHEMA)
    library.impl("grad", grad, "CompositeImplicitAutograd")


def grad(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    grad_outputs: Sequence[Any],
    *,
    retain_graph: bool | None,
    create_graph: bool,
    allow_unused: bool,
) -> list[Any]:
    """Return ``opdispatch.autograd.grad`` of these tensors, one gradient or None for each input.

    An empty ``grad_outputs`` means none. Raises AutogradError for arrays that are not tensors.
    """
    if any(not isinstance(each, Tensor) for each in (*outputs, *inputs)):
        raise AutogradError("array::grad takes tensors, but was given an array, which has no graph")
    gradients = [each if each is None else _tensor(each) for each in grad_outputs]
    return list(
        autograd.grad(
            list(outputs),
            list(inputs),
            gradients or None,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=allow_unused,
        )
    )


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(value)
