"""The elements of tensors as bytes, outside of messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from opdispatch.arrays import find_backend, find_layout
from opdispatch.errors import ArgumentError
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.chunks import Buffer
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST, check_size

Array: TypeAlias = "np.ndarray[Any, Any]"

ALIGNMENT = 64
"""Preferred alignment of elements in bytes: a cache line."""
# Sufficient for the elements of every dtype, in bytes.
_LEAST_ALIGNMENT = 16
MOST_LISTS = 100_000
"""Most lists and dicts of a reply: ``nesting.MAX_VALUES``, without importing it."""
_NO_TENSORS = frozenset({bool, int, float, complex, str, type(None)})


def count_bytes(values: Iterable[Any]) -> int:
    """Return the size in bytes of all tensors' elements, including those in lists and dicts.

    The walk stops after MOST_LISTS lists and dicts, as lists that contain themselves never end.
    Tensors whose parts do not match count as 0. Neither can be encoded in a reply anyway.
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
                with suppress(ArgumentError):  # a kernel changed its parts so that they mismatch
                    total += layout.nbytes(array)
            elif isinstance(array, np.ndarray | np.generic):
                total += array.nbytes
            elif find_backend(cls) is not None:  # may have no nbytes
                total += math.prod(array.shape) * np.dtype(array.dtype).itemsize
    return total


def check_tensor_size(array: Array) -> None:
    """Raise MessageTooLargeError for a tensor larger than the largest message."""
    check_size(array.nbytes, MAX_MESSAGE_BYTES_HIGHEST, "a tensor", "send it in parts")


def bytes_of(array: Array, dtype: np.dtype[Any], *, copies: bool) -> Buffer:
    """Return the elements as bytes in wire format: a view if possible, unless ``copies``.

    Raises MessageTooLargeError before anything is copied: a broadcast array can have any size.
    """
    check_tensor_size(array)
    if array.dtype.kind == "b":
        # Bools may have other bytes than 0 and 1, as a view of uint8 does.
        array = np.not_equal(np.ascontiguousarray(array).view(np.uint8), 0)
        copies = False
    elif array.dtype != dtype or not array.flags.c_contiguous:
        array = array.astype(dtype, order="C")
        copies = False
    flat = array.reshape(-1).view(np.uint8)
    # As bytes, because NumPy copies elements of custom dtypes one by one while it holds the GIL.
    return (flat.copy() if copies else flat).data


def contents_of(data: Buffer, *, copies: bool) -> Array:
    """Return the bytes as an array of uint8: a view, unless ``copies`` or misaligned."""
    contents = np.frombuffer(data, np.uint8)
    return contents.copy() if copies or contents.ctypes.data % _LEAST_ALIGNMENT else contents
