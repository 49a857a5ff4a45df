"""``jacrev`` and ``hessian``: all derivatives of all results, a row at a time, batched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import namespace
from opdispatch.functorch.grad_transform import Argnums, Recorded
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.functorch.tree import map_tree, rebuild
from opdispatch.functorch.vmap import vmap


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """A function that gives the Jacobian of ``func``, by going back from each of its results.

    For a result of shape R and an argument of shape A, it is a tensor of shape (*R, *A); in the
    containers of the results, and within them those of the arguments. The ways back are one batch,
    or batches of ``chunk_size``. As ``torch.func.jacrev``.
    """
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(f"jacrev was given chunk_size={chunk_size!r}; expected an int above 0")

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        recorded = Recorded(func, args, kwargs, argnums, has_aux, "jacrev")
        found = [
            recorded.by_argument(_rows(recorded, output, chunk_size))
            for output in recorded.tensors_of_output()
        ]
        whole = rebuild(recorded.output, found)
        return (whole, map_tree(unwrap_dead, recorded.aux)) if has_aux else whole

    return jacobian


def _rows(recorded: Recorded, output: Any, chunk_size: int | None) -> list[Any]:
    """The Jacobian of one result, for each input."""
    xp = namespace()
    shape, size = tuple(output.shape), output.size
    inputs = [tuple(each.shape) for each in recorded.inputs]
    if size == 0:
        return [
            xp.zeros((*shape, *each.shape), dtype=each.dtype, device=each.device)
            for each in recorded.inputs
        ]
    basis = xp.reshape(xp.eye(size, dtype=output.dtype, device=output.device), (size, *shape))

    def back(cotangent: Any) -> Any:
        return recorded.gradients([output], [cotangent])

    rows = vmap(back, chunk_size=chunk_size, randomness="same")(basis)
    return [xp.reshape(each, (*shape, *of)) for each, of in zip(rows, inputs, strict=True)]


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """A function that gives all second derivatives of ``func``: ``jacrev`` of ``jacrev``.

    ``torch.func.hessian`` has the same result by forward mode, which is not there.
    """
    return jacrev(jacrev(func, argnums), argnums)
