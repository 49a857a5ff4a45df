"""``vmap``: vectorize a function over a batch dimension. Mirrors ``torch/_functorch/vmap.py``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.errors import ArgumentError
from opdispatch.functorch.batched_tensor import (
    is_tensor,
    make_batched,
    moved_to_front,
    unwrap,
)
from opdispatch.functorch.dynamic_layer import next_level, pushed
from opdispatch.functorch.pytree import describe, leaves, rebuild, spread
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.functorch.vmap_layer import RANDOMNESS, VmapLayer
from opdispatch.local_state.lazy_imports import array_namespace

Dims = Any
"""An int or None, or nested tuples, lists and dicts of them."""


def vmap(
    func: Callable[..., Any],
    in_dims: Dims = 0,
    out_dims: Dims = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Vectorize ``func`` over a dimension of its arguments, and return the new function.

    ``in_dims`` gives the dimension of each positional argument to map over; negative values count
    from the end, and None means that the argument is not mapped. It is one number for all
    arguments, or has their structure of tuples, lists and dicts. Keyword arguments are not mapped.
    ``out_dims`` gives the position of the mapped dimension in the results, which may be nested in
    tuples, lists and dicts; None is for results that are not batched or not tensors. Transforms
    nest in any order.

    ``randomness`` applies to operators with the tag ``nondeterministic_seeded``: "error" rejects
    them, "different" draws numbers for each sample, and "same" draws once for all samples.
    ``chunk_size`` limits the number of samples computed at once.

    Raises ArgumentError for unsuitable arguments and results, and TransformError for operators that
    cannot be batched. Equivalent to ``torch.func.vmap``.
    """
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            f"vmap was given randomness={randomness!r}; expected 'error', 'different' or 'same'"
        )
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError(f"vmap was given chunk_size={chunk_size!r}; expected an int above 0")
    name = getattr(func, "__name__", type(func).__name__)

    @functools.wraps(func)
    def of_batches(*args: Any, **kwargs: Any) -> Any:
        given = leaves(args)
        dims = _in_dims(in_dims, args, given, name)
        batch_size = _batch_size(dims, given, name)
        flat = [
            each if dim is None else moved_to_front(each, dim)
            for each, dim in zip(given, dims, strict=True)
        ]

        def run(first: int, last: int) -> tuple[list[Any], list[int | None], Any]:
            parts = [
                each if dim is None or last - first == batch_size else each[first:last]
                for each, dim in zip(flat, dims, strict=True)
            ]
            return _run(func, args, kwargs, parts, dims, last - first, out_dims, randomness, name)

        if chunk_size is None or chunk_size >= batch_size:
            results, places, tree = run(0, batch_size)
            return rebuild(tree, list(map(_placed, results, places)))
        chunks = [
            run(first, min(first + chunk_size, batch_size))
            for first in range(0, batch_size, chunk_size)
        ]
        _, places, tree = chunks[0]
        columns = zip(*(results for results, _, _ in chunks), strict=True)
        joined = [
            column[0] if place is None else array_namespace().concat(list(column), axis=0)
            for column, place in zip(columns, places, strict=True)
        ]
        return rebuild(tree, list(map(_placed, joined, places)))

    return of_batches


def _run(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    flat: list[Any],
    dims: Sequence[int | None],
    batch_size: int,
    out_dims: Dims,
    randomness: str,
    name: str,
) -> tuple[list[Any], list[int | None], Any]:
    """Call ``func`` at a new level. Return the results with the batch in front, the ``out_dims`` of
    each, and their containers.
    """
    layer = VmapLayer(next_level(), batch_size, randomness)
    with pushed(layer):
        batched = [
            each if dim is None else make_batched(layer, each)
            for each, dim in zip(flat, dims, strict=True)
        ]
        result = func(*rebuild(args, batched), **kwargs)
    found = leaves(result)
    if is_tensor(result) and isinstance(out_dims, tuple) and len(out_dims) == 1:
        out_dims = out_dims[0]  # out_dims=(0,) is accepted for a single result, as in PyTorch
    what = f"vmap({name}) was given out_dims that do not fit its results"
    places = spread(out_dims, result, _is_dim, what)
    whole = []
    for each, place in zip(found, places, strict=True):
        if not is_tensor(each):
            if place is None:
                whole.append(each)
                continue
            raise ArgumentError(
                f"vmap({name}) requires a function that returns tensors; this one returned "
                f"{describe(result)}",
                hint="use out_dims=None for results that are not tensors",
            )
        value, dim = unwrap(unwrap_dead(each), layer)
        if place is None:
            if dim is not None:
                raise ArgumentError(
                    f"vmap({name}) was given out_dims=None for a batched result",
                    hint="give the position of the batch dimension in out_dims",
                )
        else:
            ndim = value.ndim + (dim is None)
            if not -ndim <= place < ndim:
                raise ArgumentError(
                    f"vmap({name}) was given out_dims={place} for a result of {ndim} dimensions, "
                    "including the batch dimension"
                )
            if dim is None:
                shape = (batch_size, *value.shape)
                value = array_namespace().broadcast_to(value, shape)
        whole.append(value)
    return whole, places, result


def _placed(value: Any, place: int | None) -> Any:
    return value if place in (None, 0) else array_namespace().moveaxis(value, 0, place)


def _is_dim(value: Any) -> bool:
    return value is None or type(value) is int


def _in_dims(in_dims: Dims, args: tuple[Any, ...], given: list[Any], name: str) -> list[int | None]:
    """Return the non-negative mapped dimension of each tensor."""
    if not given:
        raise ArgumentError(
            f"vmap({name}) was called without positional arguments; expected one to map over",
            hint="keyword arguments are not mapped over",
        )
    what = f"vmap({name}) was given in_dims that do not fit its arguments"
    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    dims = spread(in_dims, args, _is_dim, what)
    checked = []
    for each, dim in zip(given, dims, strict=True):
        if dim is not None:
            if not is_tensor(each):
                raise ArgumentError(
                    f"vmap({name}) was given in_dims={dim} for an argument of type "
                    f"{type(each).__name__}, which is not a tensor",
                    hint="use in_dims=None for arguments that are the same for all samples",
                )
            ndim = len(each.shape)
            if not -ndim <= dim < ndim:
                raise ArgumentError(
                    f"vmap({name}) was given in_dims={dim} for a tensor of shape "
                    f"{list(each.shape)}; expected one of its {ndim} dimensions"
                )
            dim %= ndim
        checked.append(dim)
    return checked


def _batch_size(dims: Sequence[int | None], given: list[Any], name: str) -> int:
    sizes = [each.shape[dim] for each, dim in zip(given, dims, strict=True) if dim is not None]
    if not sizes:
        raise ArgumentError(
            f"vmap({name}) was given only None in in_dims; expected a dimension to map over",
            hint="give the dimension of the samples for at least one argument",
        )
    if len(set(sizes)) > 1:
        raise ArgumentError(
            f"vmap({name}) was given tensors for different numbers of samples: {sizes}; expected "
            "the same extent of each in the dimension that in_dims says"
        )
    return int(sizes[0])
