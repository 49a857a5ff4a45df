"""Quantized tensors, one scale and one zero point each: key ``QuantizedCPU``, ``QuantizedCUDA``.

    real = (int_repr - zero_point) * scale

PyTorch's dtypes ``quint8``, ``qint8`` and ``qint32`` are uint8, int8 and int32 here. Elements are
rounded as PyTorch 2.13 rounds them on the CPU: see ``quantize``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays.backends import device_of, find_backend
from opdispatch.arrays.layout import Facts, Layout, making, namespace_of, read_only_view
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_DTYPES = {"quint8": "uint8", "qint8": "int8", "qint32": "int32"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class QuantizedArray:
    """Integers that stand for real numbers: ``(int_repr - zero_point) * scale``.

    ``int_repr`` is an array of any backend, of uint8, int8 or int32, which is not copied. Raises
    ArgumentError for another dtype, a scale that float32 has not as a finite number above 0, or
    a zero point that ``int_repr`` could not have.
    """

    int_repr: Any
    scale: float
    zero_point: int

    def __post_init__(self) -> None:
        facts = _quantization(self.scale, self.zero_point)
        QUANTIZED.check_arrays((self.int_repr,))
        object.__setattr__(self, "scale", facts.scale)
        object.__setattr__(self, "zero_point", facts.zero_point)
        QUANTIZED.check_parts((self.int_repr,), facts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension."""
        return tuple(self.int_repr.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of ``int_repr``: uint8, int8 or int32."""
        dtype: np.dtype[Any] = np.dtype(self.int_repr.dtype)
        return dtype

    @property
    def key_bits(self) -> int:
        """The dispatch key word: QuantizedCPU, QuantizedCUDA, ..."""
        return QUANTIZED.key_bits_of(self)

    def dequantize(self) -> Any:
        """Return the real numbers, in float32. Raises DeviceMemoryError."""
        xp = namespace_of(self.int_repr)
        with making("an array of the real numbers", device_of(self.int_repr)):
            steps = xp.astype(self.int_repr, np.int64) - self.zero_point
            return xp.astype(steps, np.float32) * np.float32(self.scale)

    def unbind(self, axis: int) -> list[QuantizedArray]:
        """Return views of the items along an axis."""
        before = (slice(None),) * axis
        return [
            dataclasses.replace(self, int_repr=self.int_repr[(*before, n, ...)])
            for n in range(self.shape[axis])
        ]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise ArgumentError("a quantized array is not dense", hint="use dequantize()")


class Quantized(Layout):
    """``int_repr``, of any shape."""

    name = "quantized"
    pytorch_name = "strided"
    functionality = DispatchKey.Quantized
    part_names = ("int_repr",)
    elements_name = "int_repr"
    fact_names = ("scale", "zero_point")

    def owns(self, cls: type) -> bool:
        """Return whether ``cls`` is QuantizedArray."""
        return issubclass(cls, QuantizedArray)

    def shape_of(self, parts: Sequence[Any], facts: Facts) -> tuple[int | None, ...]:
        """Return the shape of the integers."""
        return tuple(parts[0].shape)

    def elements(self, array: Any) -> Any:
        """Return the integers."""
        return array.int_repr

    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return the integers."""
        return (array.int_repr,)

    def facts(self, array: Any) -> Facts:
        """Return the scale and the zero point. Raises ArgumentError if they are not valid
        numbers."""
        return _quantization(array.scale, array.zero_point)

    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError unless PyTorch has the dtype, the scale is above 0, and the zero
        point in range.
        """
        (int_repr,) = parts
        if int_repr.dtype not in _DTYPES.values():
            raise ArgumentError(
                f"{at}int_repr has dtype {int_repr.dtype}; expected uint8, int8 or int32"
            )
        check_scale(facts, int_repr.dtype, at)

    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Accept all integers: each stands for a number."""

    def assemble(self, parts: Sequence[Any], facts: Facts) -> QuantizedArray:
        """Return a QuantizedArray."""
        return QuantizedArray(parts[0], facts.scale, facts.zero_point)

    def to_dense(self, array: QuantizedArray) -> Any:
        """Return the real numbers."""
        return array.dequantize()

    def read_only(self, array: QuantizedArray) -> QuantizedArray:
        """Return a quantized array over a read-only view."""
        return dataclasses.replace(array, int_repr=read_only_view(array.int_repr))


QUANTIZED = Quantized()


def check_scale(facts: Facts, dtype: Any, at: str = "") -> None:
    """Raise ArgumentError unless the scale and zero point are valid for integers of ``dtype``.

    The scale must be finite and above 0 in float32, the zero point within the dtype's range.
    """
    scale, zero_point = facts.scale, facts.zero_point
    with np.errstate(over="ignore"):
        single = float(np.float32(scale))  # which is what calculations take
    if not (math.isfinite(single) and single > 0):
        raise ArgumentError(f"{at}scale is {scale!r}; expected a finite number above 0, in float32")
    info = np.iinfo(dtype)
    if not info.min <= zero_point <= info.max:
        raise ArgumentError(
            f"{at}zero_point is {zero_point}; expected one of {info.dtype}, "
            f"{info.min} to {info.max}"
        )


def _quantization(scale: Any, zero_point: Any) -> Facts:
    try:
        # float() would parse a string, and drop the imaginary part of a NumPy complex.
        if isinstance(scale, str | bytes | bytearray) or np.iscomplexobj(scale):
            raise TypeError
        return Facts(scale=float(scale), zero_point=operator.index(zero_point))
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"scale is {scale!r} and zero_point {zero_point!r}; expected a number and an integer"
        ) from error


def quantized_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the integer dtype for a dtype or a PyTorch name such as ``quint8``.

    Raises ArgumentError for any other dtype or name.
    """
    if isinstance(dtype, str) and dtype in _DTYPES:
        return np.dtype(_DTYPES[dtype])
    with contextlib.suppress(TypeError):
        wanted = np.dtype(dtype)
        if wanted in _DTYPES.values():
            return wanted
    raise ArgumentError(
        f"there is no quantized dtype {dtype!r}; expected 'quint8', 'qint8' or 'qint32'"
    )


def quantize(array: Any, scale: float, zero_point: int, dtype: DTypeLike) -> QuantizedArray:
    """Return ``array / scale + zero_point`` in float32, rounded to the nearest, half to even.

    What is out of range is the nearest integer that there is. As in PyTorch 2.13 on the CPU, the
    product is not rounded before it is added where the result has 8 bits, and NaN is the largest
    of 8 bits and the smallest of 32. Raises ArgumentError for an array that has no real numbers,
    and DeviceMemoryError.
    """
    wanted = quantized_dtype(dtype)
    facts = _quantization(scale, zero_point)
    check_scale(facts, wanted)
    backend = find_backend(type(array))
    if backend is None or np.dtype(array.dtype).kind not in "biuf":
        raise ArgumentError(
            f"a tensor of dtype {np.dtype(array.dtype)} cannot be quantized; expected real numbers"
        )
    xp = namespace_of(array)
    info = np.iinfo(wanted)
    with np.errstate(over="ignore", invalid="ignore"), making("the integers", device_of(array)):
        real = xp.astype(array, np.float32)
        inverse = np.float32(1) / np.float32(facts.scale)
        if wanted.itemsize == 1:
            # A product of two float32 is exact in float64: this is one fused multiply-add.
            exact = xp.astype(real, np.float64) * np.float64(inverse) + np.float64(facts.zero_point)
            rounded = xp.round(xp.astype(exact, np.float32))
        else:
            rounded = xp.round(real * inverse + np.float32(facts.zero_point))
        nan = info.max if wanted.itemsize == 1 else info.min
        rounded = xp.where(xp.isnan(rounded), np.float64(nan), xp.astype(rounded, np.float64))
        integers = xp.astype(xp.clip(rounded, info.min, info.max), wanted)
    return QuantizedArray(integers, facts.scale, facts.zero_point)
