"""Flatten and rebuild nested tuples, lists and dicts of tensors; a subset of PyTorch's
``pytree``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from opdispatch.errors import ArgumentError

_CONTAINERS = (tuple, list, dict)


def leaves(tree: Any) -> list[Any]:
    """Return the leaves of nested containers, in order; dicts are traversed in insertion order."""
    if type(tree) is dict:
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, tuple | list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def map_tree(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a copy of the containers with ``function`` applied to each leaf."""
    if type(tree) is dict:
        return {key: map_tree(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [map_tree(function, value) for value in tree])
    return function(tree)


def rebuild(tree: Any, values: list[Any]) -> Any:
    """Return a copy of the containers with its leaves replaced."""
    rest: Iterator[Any] = iter(values)
    return map_tree(lambda leaf: next(rest), tree)


def spread(prefix: Any, tree: Any, is_leaf: Callable[[Any], bool], what: str) -> list[Any]:
    """Return the entry of ``prefix`` for each leaf of ``tree``, in order.

    An entry of ``prefix`` may stand for a whole subtree. Raises ArgumentError, with a message that
    begins with ``what``, if the containers differ.
    """
    if not isinstance(prefix, _CONTAINERS):
        if not is_leaf(prefix):
            raise ArgumentError(f"{what}: {prefix!r} is neither an int nor None")
        return [prefix] * len(leaves(tree))
    if type(prefix) is dict:
        fits = type(tree) is dict and tree.keys() == prefix.keys()
        pairs = [(prefix[key], tree[key]) for key in tree] if fits else []
    else:
        kind = tuple if isinstance(prefix, tuple) else list
        fits = isinstance(tree, kind) and len(tree) == len(prefix)
        pairs = list(zip(prefix, tree, strict=True)) if fits else []
    if not fits:
        raise ArgumentError(f"{what}: {prefix!r} was given for {describe(tree)}")
    return [each for one, below in pairs for each in spread(one, below, is_leaf, what)]


def leaves_as_in(tree: Any, other: Any) -> list[Any] | None:
    """Return the leaves of ``other`` in the order of those of ``tree``.

    Dicts are matched by key, in any order. Returns None if the containers differ.
    """
    pairs: list[tuple[Any, Any]]
    if type(tree) is dict:
        if type(other) is not dict or tree.keys() != other.keys():
            return None
        pairs = [(tree[key], other[key]) for key in tree]
    elif isinstance(tree, tuple | list):
        if type(tree) is not type(other) or len(tree) != len(other):
            return None
        pairs = list(zip(tree, other, strict=True))
    else:
        return None if isinstance(other, _CONTAINERS) else [other]
    parts = [leaves_as_in(one, another) for one, another in pairs]
    if any(part is None for part in parts):
        return None
    return [leaf for part in parts if part is not None for leaf in part]


def describe(tree: Any) -> str:
    """Return the structure of containers with the types of the leaves, such as ``(Tensor,
    [Tensor])``."""
    if type(tree) is dict:
        return "{" + ", ".join(f"{key!r}: {describe(v)}" for key, v in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        inner = ", ".join(map(describe, tree))
        return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
    return type(tree).__name__


def _like(tree: Any, values: list[Any]) -> Any:
    if hasattr(tree, "_fields"):
        return type(tree)(*values)
    return tuple(values) if isinstance(tree, tuple) else values
