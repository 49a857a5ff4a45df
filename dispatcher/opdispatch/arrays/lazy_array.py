"""Arrays whose elements are computed on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class LazyArray(ABC):
    """Base of arrays that stand for another array in calls of NumPy's functions.

    It has a ``shape``, a ``dtype``, and in ``key_bits`` its keys.
    """

    __slots__ = ("__weakref__",)

    shape: tuple[int, ...]
    dtype: Any
    key_bits: int

    @property
    @abstractmethod
    def device(self) -> str:
        """Where it is."""

    @abstractmethod
    def materialized(self) -> Any:
        """Compute the elements, as an array of its own. Raises DeviceError."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def item(self) -> Any:
        """Return the number in an array of one element."""
        return self.materialized().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"the elements of a {type(self).__name__} must be computed")
        return np.asarray(self.materialized(), dtype=dtype)

    def __bool__(self) -> bool:
        return bool(self.materialized())

    def __int__(self) -> int:
        return int(self.materialized())

    def __float__(self) -> float:
        return float(self.materialized())

    def __complex__(self) -> complex:
        return complex(self.materialized())

    def __repr__(self) -> str:
        return repr(self.materialized())


def materialized(array: Any) -> Any:
    """Return an array's own elements: itself, unless it is lazy. Raises DeviceError."""
    return array.materialized() if isinstance(array, LazyArray) else array
