"""The elements of a tensor, as bytes outside a message."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, check_size
from opdispatch_wire.chunks import Buffer

Array = np.ndarray[Any, Any]

_BOOL = np.dtype(bool)
_BYTE = np.dtype(np.uint8)

ALIGNMENT = 64
"""Where elements begin best, in bytes: at the start of a cache line."""
# Where the elements of every dtype may begin.
_LEAST_ALIGNMENT = 16


def check_tensor_size(array: Array) -> None:
    """Raise MessageTooLargeError for a tensor that no message takes."""
    check_size(array.nbytes, MAX_MESSAGE_BYTES_HIGHEST, "a tensor", "send it in parts")


def bytes_of(array: Array, dtype: np.dtype[Any], *, copies: bool) -> Buffer:
    """Return the elements as they are on the wire, in place where possible.

    Raises MessageTooLargeError for more than a call may have, before they are copied: an array
    that repeats one element may have any size.
    """
    check_tensor_size(array)
    if array.dtype == _BOOL:
        array = np.not_equal(np.ascontiguousarray(array).view(_BYTE), 0)  # some may be 2, not 1
        copies = False
    elif array.dtype != dtype or not array.flags.c_contiguous:
        array = array.astype(dtype, order="C")
        copies = False
    flat = array.reshape(-1).view(_BYTE)
    # As bytes: NumPy copies other libraries' dtypes one by one, and lets no other thread run.
    return (flat.copy() if copies else flat).data


def contents_of(data: Buffer, *, copies: bool) -> Array:
    """Return the bytes as an array of uint8, in place unless misaligned for some dtypes."""
    contents = np.frombuffer(data, np.uint8)
    return contents.copy() if copies or contents.ctypes.data % _LEAST_ALIGNMENT else contents
