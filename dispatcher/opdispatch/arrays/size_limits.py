"""Limits of array sizes.

Note [Sizes that wrap around]
    NumPy rejects arrays that exceed the address space. CuPy multiplies extents in 64 bits without
    an overflow check: for 2**61 elements of 8 bytes it allocates nothing, and a kernel that
    accesses them reads or overwrites other memory of the process. Code that creates a GPU array
    with a size taken from a caller must therefore check it first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

MOST_ELEMENTS = sys.maxsize // 16
"""Most elements of an array: the size in bytes of that many complex128 fits in a C ``ssize_t``.

The limit is the same for every dtype, since a result may be promoted to complex128.
"""


def count_elements(shape: Iterable[int]) -> int:
    """Return the number of elements, with each extent counted as at least 1.

    NumPy counts this way, too: a reduction over an empty axis has more elements than its argument.
    """
    return math.prod(max(extent, 1) for extent in shape)


def is_of_possible_size(shape: Iterable[int]) -> bool:
    """Return whether an array of that shape is possible. See Note [Sizes that wrap around]."""
    return count_elements(shape) <= MOST_ELEMENTS


def check_elements(shape: Iterable[int]) -> None:
    """Raise ValueError, as NumPy does, if an array of that shape would be too large."""
    if not is_of_possible_size(shape):
        raise ValueError("it would have more elements than an array can have")
