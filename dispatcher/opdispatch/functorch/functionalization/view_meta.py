"""The step from a base to a view, and its inverse, which applies a write to the view to the base.

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
    """One step from a base to a view. Its functions take values and are pure."""

    forward: Forward
    """Function that returns the view of a base."""
    reverse: Reverse
    """Function that returns the base with the view's elements replaced by new ones."""
    strided: Forward | None = None
    """``forward`` for NumPy arrays, which reads no elements; None if there is none."""


IDENTITY = ViewMeta(lambda base: base, lambda base, mutated: mutated, lambda array: array)
"""The step of an operator that returns its argument itself."""


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
    """Return a placeholder array with the given shape and strides, backed by a single element.

    Its elements must not be read. Without ``strides``, it has those of a C-contiguous array.
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
