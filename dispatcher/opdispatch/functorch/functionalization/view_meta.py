"""How a view is made of its base, and how the base is made anew when the view has been written to.

Mirrors ``at::functionalization::ViewMeta``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Forward = Callable[[Any], Any]
Reverse = Callable[[Any, Any], Any]
Strided: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True, slots=True)
class ViewMeta:
    """One step from a base to a view. Its functions take values, and write to nothing."""

    forward: Forward
    """The view of a base."""
    reverse: Reverse
    """The base, but with what a view of it has become in its place."""
    strided: Forward | None = None
    """``forward`` for NumPy's arrays, which looks at no element; None: it is not known."""


IDENTITY = ViewMeta(lambda base: base, lambda base, mutated: mutated, lambda array: array)
"""Of a result that is its argument."""


def view_of(base: Any, views: Sequence[ViewMeta]) -> Any:
    """Apply several view steps to a base."""
    for view in views:
        base = view.forward(base)
    return base


def scatter(base: Any, views: Sequence[ViewMeta], mutated: Any) -> Any:
    """Return the base with ``mutated`` in place of the view that the steps make of it."""
    bases = [base] if views else []
    for view in views[:-1]:
        bases.append(view.forward(bases[-1]))
    for view, before in zip(reversed(views), reversed(bases), strict=True):
        mutated = view.reverse(before, mutated)
    return mutated


def stand_in(shape: Sequence[int], dtype: Any, strides: Sequence[int] | None) -> Strided:
    """Return an array of that shape and those strides that must not be read: it has one element.

    Without strides, those of a C-contiguous one.
    """
    if strides is None:
        extents = [max(extent, 1) for extent in shape]
        strides = [
            dtype.itemsize * int(np.prod(extents[place + 1 :], dtype=np.int64))
            for place in range(len(shape))
        ]
    return np.lib.stride_tricks.as_strided(
        np.empty(1, dtype), tuple(shape), tuple(strides), writeable=False
    )
