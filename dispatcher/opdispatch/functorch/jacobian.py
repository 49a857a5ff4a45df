"""``jacrev``, ``jacfwd`` and ``hessian``: full Jacobians, computed as one batch under ``vmap``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.grad_transform import Argnums, Recorded
from opdispatch.functorch.jvp import DualCall
from opdispatch.functorch.jvp_layer import JvpLayer
from opdispatch.functorch.pytree import leaves, map_tree, rebuild
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.functorch.vmap import vmap
from opdispatch.local_state.lazy_imports import array_namespace


def jacrev(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of ``func`` in reverse mode.

    For a result of shape R and an argument of shape A, the Jacobian has shape (*R, *A). Jacobians
    are returned in the structure of the results, each with the structure of the arguments. There is
    one backward pass for each element of the results; they run as one batch, or in batches of
    ``chunk_size``. Arguments and results must be real, since a complex function has a Jacobian only
    if it is holomorphic. Equivalent to ``torch.func.jacrev``.
    """
    _check_chunk_size("jacrev", chunk_size)

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        recorded = Recorded(func, args, kwargs, argnums, has_aux, "jacrev")
        outputs = recorded.tensors_of_output()
        _check_real("jacrev", recorded.name, "argument", recorded.inputs)
        _check_real("jacrev", recorded.name, "result", outputs)
        found = [recorded.by_argument(_rows(recorded, output, chunk_size)) for output in outputs]
        whole = rebuild(recorded.output, found)
        return (whole, map_tree(unwrap_dead, recorded.aux)) if has_aux else whole

    return jacobian


def _rows(recorded: Recorded, output: Any, chunk_size: int | None) -> list[Any]:
    """Return the Jacobians of one result with respect to each input."""
    xp = array_namespace()
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


def jacfwd(
    func: Callable[..., Any],
    argnums: Argnums = 0,
    has_aux: bool = False,
    *,
    chunk_size: int | None = None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of ``func`` in forward mode.

    The result is the same as that of ``jacrev``. It is a batch of ``jvp`` calls, one for each
    element of the arguments, split into batches of ``chunk_size``; ``randomness`` is passed to
    ``vmap``. The cost grows with the number of elements of the arguments, whereas that of
    ``jacrev`` grows with the number of elements of the results. Equivalent to
    ``torch.func.jacfwd``.
    """
    _check_chunk_size("jacfwd", chunk_size)

    @functools.wraps(func)
    def jacobian(*args: Any, **kwargs: Any) -> Any:
        call = DualCall(JvpLayer, func, args, argnums, has_aux, "jacfwd", kwargs)
        _check_real("jacfwd", call.name, "argument", call.inputs)

        def push(*tangents: Any) -> list[Any]:
            call.run(tangents)
            _check_real("jacfwd", call.name, "result", call.outputs)
            return [*call.tangents(), *filter(is_tensor, leaves(call.aux()))]

        push_all = vmap(push, chunk_size=chunk_size, randomness=randomness)
        columns = push_all(*_basis(call.inputs))
        count = len(call.outputs)
        found = []
        for each in columns[:count]:
            whole = rebuild(call.trees, _by_input(each, call.inputs))
            found.append(whole[0] if isinstance(argnums, int) else tuple(whole))
        jacobians = rebuild(call.output, found)
        if not has_aux:
            return jacobians
        first = iter(columns[count:])
        aux = map_tree(lambda leaf: next(first)[0] if is_tensor(leaf) else leaf, call.aux())
        return jacobians, aux

    return jacobian


def _check_chunk_size(transform: str, chunk_size: Any) -> None:
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(
            f"{transform} was given chunk_size={chunk_size!r}; expected an int above 0"
        )


def _basis(inputs: list[Any]) -> list[Any]:
    """Return the standard basis of all inputs, stacked along dimension 0 of one tensor for each
    input."""
    xp = array_namespace()
    sizes = [each.size for each in inputs]
    found, before = [], 0
    for each, size in zip(inputs, sizes, strict=True):
        block = xp.eye(sum(sizes), size, k=-before, dtype=each.dtype, device=each.device)
        found.append(xp.reshape(block, (sum(sizes), *each.shape)))
        before += size
    return found


def _by_input(column: Any, inputs: list[Any]) -> list[Any]:
    """Split the stacked tangents of one result into its Jacobians with respect to each input."""
    xp = array_namespace()
    shape, parts, before = tuple(column.shape[1:]), [], 0
    for each in inputs:
        part = xp.moveaxis(column[before : before + each.size], 0, -1)
        parts.append(xp.reshape(part, (*shape, *each.shape)))
        before += each.size
    return parts


def _check_real(transform: str, name: str, what: str, tensors: list[Any]) -> None:
    for place, each in enumerate(tensors):
        if each.dtype.kind == "c":
            raise ArgumentError(
                f"{transform} requires real functions; {what} {place} of {name} is {each.dtype}",
                hint="pass the real and imaginary parts as separate arguments or results",
            )


def hessian(func: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that computes the Hessian of ``func``, as ``jacfwd(jacrev(func))``.

    Equivalent to ``torch.func.hessian``.
    """
    return jacfwd(jacrev(func, argnums), argnums)
