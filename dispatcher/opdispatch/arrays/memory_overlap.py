"""Whether elements of one array share memory, as after ``broadcast_to``.

Mirrors ``has_internal_overlap`` of ``ATen/MemoryOverlap.h``.
"""

from __future__ import annotations

from collections.abc import Sequence

INTERNAL_OVERLAP = "more than one element refers to a single memory location"
"""The reason why such an array cannot be written to, for messages."""


def has_internal_overlap(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a dimension of more than one element has the stride 0.

    An array without elements has no overlap, whatever its strides are.
    """
    return 0 not in shape and any(
        extent > 1 and stride == 0 for extent, stride in zip(shape, strides, strict=True)
    )
