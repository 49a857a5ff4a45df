"""Lists, tuples and dicts with tensors in them, as functions take and return them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same lists, tuples and dicts, with ``function`` applied to the leaves.

    A named tuple stays one.
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
    """Return a key that is equal for equal constants: 0.0 and -0.0 differ, and NaN is one.

    For values of one type: 1, 1.0 and True are equal here.
    """
    return repr(value) if isinstance(value, float | complex) else value


def named_leaves(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves, each with a name that says where it is: ``weights_0``, ``state_bias``."""
    if isinstance(tree, list | tuple):
        for place, each in enumerate(tree):
            yield from named_leaves(f"{name}_{place}", each)
    elif isinstance(tree, dict):
        for key, each in tree.items():
            yield from named_leaves(f"{name}_{key}", each)
    else:
        yield name, tree
