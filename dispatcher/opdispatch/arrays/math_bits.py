"""Lazily conjugated and negated arrays.

They correspond to PyTorch's tensors with the conjugate or negative bit: the operation is applied
when the elements are read. https://docs.pytorch.org/docs/2.13/generated/torch.conj.html
"""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backends import find_backend
from opdispatch.arrays.lazy_array import LazyArray
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key

_CONJUGATE, _NEGATIVE = map(bits_of_key, (DispatchKey.Conjugate, DispatchKey.Negative))
MATH_BITS = _CONJUGATE | _NEGATIVE


class MathBitsArray(LazyArray):
    """A view of the dense array ``base`` with the conjugate bit, the negative bit, or both.

    It has the key Conjugate or Negative, or both, in addition to its backend's. Raises
    ArgumentError if ``base`` is not a dense array.
    """

    __slots__ = ("base", "is_conj", "is_neg", "key_bits")

    def __init__(self, base: Any, *, is_conj: bool, is_neg: bool) -> None:
        backend = find_backend(type(base))
        if backend is None:
            raise ArgumentError(
                f"only a dense array can have its conjugate or negative bit set, not "
                f"{type(base).__qualname__}"
            )
        self.base = base
        self.is_conj = is_conj
        self.is_neg = is_neg
        self.key_bits = backend.key_bits | _CONJUGATE * is_conj | _NEGATIVE * is_neg

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.base.dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The extent of each dimension."""
        return tuple(self.base.shape)

    @property
    def device(self) -> str:
        """The device of the stored elements."""
        backend = find_backend(type(self.base))
        assert backend is not None, "it is of a dense array"
        return backend.device_of(self.base)

    @property
    def strides(self) -> Any:
        """The strides of the stored elements; None if the array library has none."""
        return getattr(self.base, "strides", None)

    def over(self, base: Any) -> Any:
        """Return an array with the same bits over the dense array ``base``."""
        return with_math_bits(base, is_conj=self.is_conj, is_neg=self.is_neg)

    def materialized(self) -> Any:
        """Return a new dense array, conjugated and negated as the bits say. Raises DeviceError."""
        if isinstance(self.base, MetaArray):
            return MetaArray(self.base.shape, self.base.dtype)
        if hasattr(self.base, "conj"):
            return self._of(self.base)
        # The library's arrays have no arithmetic, so compute on the host.
        backend = find_backend(type(self.base))
        assert backend is not None, "it is of a dense array"
        host = self._of(backend.to_host(self.base))
        return backend.from_host(host, backend.device_of(self.base))

    def _of(self, array: Any) -> Any:
        result = array.conj() if self.is_conj else array
        return -result if self.is_neg else result


def with_math_bits(array: Any, *, is_conj: bool, is_neg: bool) -> Any:
    """Return a view of a dense array with these bits set; the array itself if neither is."""
    if is_conj or is_neg:
        return MathBitsArray(array, is_conj=is_conj, is_neg=is_neg)
    return array


def stored(array: Any) -> Any:
    """Return the stored elements of an array, with neither bit applied."""
    return array.base if type(array) is MathBitsArray else array


def toggled(array: Any, *, conj: bool = False, neg: bool = False) -> Any:
    """Return a view of an array with the selected bits inverted."""
    if type(array) is not MathBitsArray:
        return with_math_bits(array, is_conj=conj, is_neg=neg)
    return with_math_bits(
        array.base, is_conj=array.is_conj is not conj, is_neg=array.is_neg is not neg
    )
