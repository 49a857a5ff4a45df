"""The elements of a tensor, as bytes outside a message."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from opdispatch.arrays import find_backend, find_layout
from opdispatch.errors import ArgumentError
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.channel import MAX_MESSAGE_BYTES_HIGHEST, check_size
from opdispatch_wire.chunks import Buffer

Array: TypeAlias = "np.ndarray[Any, Any]"

ALIGNMENT = 64
"""Where elements begin best, in bytes: at the start of a cache line."""
# Where the elements of every dtype may begin.
_LEAST_ALIGNMENT = 16
MOST_LISTS = 100_000
"""How many lists and dicts a reply may have at most: ``nesting.MAX_VALUES``."""
_NO_TENSORS = frozenset({bool, int, float, complex, str, type(None)})


def count_bytes(values: Iterable[Any]) -> int:
    """Return the bytes of the elements of all tensors, those in lists and dicts among them.

    Lists that lie in themselves, or share so many parts that there are too many values, are not
    walked to their end, and tensors whose parts do not belong together count for nothing: no reply
    has them.
    """
    total = count = 0
    lists = [values]
    while lists and count <= MOST_LISTS:
        count += 1
        for value in lists.pop():
            array = value.array if type(value) is Tensor else value
            cls = type(array)
            if cls is np.ndarray:
                total += array.nbytes
            elif cls in _NO_TENSORS:
                continue
            elif isinstance(array, list | tuple):
                lists.append(array)
            elif isinstance(array, dict):
                lists.append(array.values())
            elif layout := find_layout(cls):
                with suppress(ArgumentError):  # a kernel has broken it
                    total += layout.nbytes(array)
            elif isinstance(array, np.ndarray | np.generic):
                total += array.nbytes
            elif find_backend(cls) is not None:  # whose arrays need not count them
                total += math.prod(array.shape) * np.dtype(array.dtype).itemsize
    return total


def check_tensor_size(array: Array) -> None:
    """Raise MessageTooLargeError for a tensor that no message takes."""
    check_size(array.nbytes, MAX_MESSAGE_BYTES_HIGHEST, "a tensor", "send it in parts")


def bytes_of(array: Array, dtype: np.dtype[Any], *, copies: bool) -> Buffer:
    """Return the elements as they are on the wire, in place where possible.

    Raises MessageTooLargeError for more than a call may have, before they are copied: an array
    that repeats one element may have any size.
    """
    check_tensor_size(array)
    if array.dtype.kind == "b":
        array = np.not_equal(np.ascontiguousarray(array).view(np.uint8), 0)  # some may be 2, not 1
        copies = False
    elif array.dtype != dtype or not array.flags.c_contiguous:
        array = array.astype(dtype, order="C")
        copies = False
    flat = array.reshape(-1).view(np.uint8)
    # As bytes: NumPy copies other libraries' dtypes one by one, and lets no other thread run.
    return (flat.copy() if copies else flat).data


def contents_of(data: Buffer, *, copies: bool) -> Array:
    """Return the bytes as an array of uint8, in place unless misaligned for some dtypes."""
    contents = np.frombuffer(data, np.uint8)
    return contents.copy() if copies or contents.ctypes.data % _LEAST_ALIGNMENT else contents
