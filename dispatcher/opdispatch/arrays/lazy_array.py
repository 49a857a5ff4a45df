"""Arrays whose elements are computed on first use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class LazyArray(ABC):
    """Base class of arrays whose elements are computed when NumPy or a kernel reads them.

    ``key_bits`` is the dispatch key word.
    """

    __slots__ = ("__weakref__",)

    shape: tuple[int, ...]
    dtype: Any
    key_bits: int

    @property
    @abstractmethod
    def device(self) -> str:
        """The device of the elements, such as ``"cpu"``."""

    @abstractmethod
    def materialized(self) -> Any:
        """Return a new dense array of the computed elements. Raises DeviceError."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self.materialized().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(
                f"a {type(self).__name__} cannot be converted without a copy: its elements must be "
                "computed"
            )
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
    """Return the dense elements of a lazy array; any other value as it is. Raises DeviceError."""
    return array.materialized() if isinstance(array, LazyArray) else array
