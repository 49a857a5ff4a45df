"""Nested lists, tuples and dicts of tensors, as arguments and results of functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return a copy of nested lists, tuples and dicts with ``function`` applied to the leaves.

    Named tuples are preserved.
    """
    if isinstance(tree, list):
        return [map_leaves(function, each) for each in tree]
    if isinstance(tree, tuple):
        items = [map_leaves(function, each) for each in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    if isinstance(tree, dict):
        return {key: map_leaves(function, each) for key, each in tree.items()}
    return function(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves: values that are not lists, tuples or dicts, in order."""
    if isinstance(tree, list | tuple):
        for each in tree:
            yield from leaves(each)
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from leaves(each)
    else:
        yield tree


def constant_key(value: Any) -> Any:
    """Return a key that is equal for identical constants: 0.0 and -0.0 differ, and NaN equals NaN.

    Only keys of values of one type may be compared, since 1, 1.0 and True are equal here.
    """
    return repr(value) if isinstance(value, float | complex) else value


def named_leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves, each with a name derived from its path: ``weights_0``, ``state_bias``."""
    if isinstance(tree, list | tuple):
        for place, each in enumerate(tree):
            yield from named_leaves(f"{name}_{place}", each)
    elif isinstance(tree, dict):
        for key, each in tree.items():
            yield from named_leaves(f"{name}_{key}", each)
    else:
        yield name, tree
