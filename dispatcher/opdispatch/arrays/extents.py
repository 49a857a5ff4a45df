"""Limits of array sizes.

Note [Sizes that wrap around]
    NumPy rejects arrays that exceed the address space. CuPy multiplies extents in 64 bits without
    an overflow check: for 2**61 elements of 8 bytes it allocates nothing, and a kernel that
    accesses them reads or overwrites other memory of the process. Code that creates a GPU array
    with sizes from outside must therefore check them first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

MOST_ELEMENTS = sys.maxsize // 16
"""No array has more: of complex128, which every dtype may become, their bytes are a C ``ssize_t``.

No processor has addresses for as many of one byte.
"""


def count_elements(shape: Iterable[int]) -> int:
    """Return the number of elements if each extent were at least 1.

    So NumPy counts, too: of no rows of too many columns, a sum has too many elements.
    """
    return math.prod(max(extent, 1) for extent in shape)


def is_of_possible_size(shape: Iterable[int]) -> bool:
    """Return whether an array of that shape is possible. See Note [Sizes that wrap around]."""
    return count_elements(shape) <= MOST_ELEMENTS


def check_elements(shape: Iterable[int]) -> None:
    """Raise ValueError, as NumPy does, unless there can be an array of that shape."""
    if not is_of_possible_size(shape):
        raise ValueError("it would have more elements than an array can have")
