"""The quantized layout, with one scale and zero point: keys ``QuantizedCPU``, ``QuantizedCUDA``.

    real = (int_repr - zero_point) * scale

PyTorch's dtypes ``quint8``, ``qint8`` and ``qint32`` correspond to uint8, int8 and int32. Rounding
is that of PyTorch 2.13 on the CPU: see ``quantize``.
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
    """Integers that represent the real numbers ``(int_repr - zero_point) * scale``.

    ``int_repr`` is an array of any backend with dtype uint8, int8 or int32. It is not copied.
    Raises ArgumentError for another dtype, a scale that is not finite and above 0 in float32, or a
    zero point outside the range of the dtype.
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
        """Return a dense float32 array of the real numbers. Raises DeviceMemoryError."""
        xp = namespace_of(self.int_repr)
        with making("an array of the real numbers", device_of(self.int_repr)):
            steps = xp.astype(self.int_repr, np.int64) - self.zero_point
            return xp.astype(steps, np.float32) * np.float32(self.scale)

    def unbind(self, axis: int) -> list[QuantizedArray]:
        """Return views of the slices along ``axis``, each with one dimension less."""
        before = (slice(None),) * axis
        return [
            dataclasses.replace(self, int_repr=self.int_repr[(*before, n, ...)])
            for n in range(self.shape[axis])
        ]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise ArgumentError("a quantized array is not dense", hint="use dequantize()")


class Quantized(Layout):
    """The layout of QuantizedArray: the part ``int_repr``, of any shape."""

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
        """Return the shape of ``int_repr``."""
        return tuple(parts[0].shape)

    def elements(self, array: Any) -> Any:
        """Return ``int_repr``."""
        return array.int_repr

    def parts(self, array: Any) -> tuple[Any, ...]:
        """Return ``int_repr`` in a tuple."""
        return (array.int_repr,)

    def facts(self, array: Any) -> Facts:
        """Return the scale and the zero point. Raises ArgumentError if either is not a number."""
        return _quantization(array.scale, array.zero_point)

    def check_parts(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Raise ArgumentError for another dtype or an invalid scale or zero point."""
        (int_repr,) = parts
        if int_repr.dtype not in _DTYPES.values():
            raise ArgumentError(
                f"{at}int_repr has dtype {int_repr.dtype}; expected uint8, int8 or int32"
            )
        check_scale(facts, int_repr.dtype, at)

    def check_elements(self, parts: Sequence[Any], facts: Facts, at: str = "") -> None:
        """Do nothing: every integer is valid."""

    def assemble(self, parts: Sequence[Any], facts: Facts) -> QuantizedArray:
        """Return a QuantizedArray."""
        return QuantizedArray(parts[0], facts.scale, facts.zero_point)

    def to_dense(self, array: QuantizedArray) -> Any:
        """Return ``array.dequantize()``."""
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
        single = float(np.float32(scale))  # calculations use float32
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
    """Return ``round(array / scale + zero_point)``, clipped to the range of ``dtype``.

    Calculates in float32 and rounds half to even, as PyTorch 2.13 does on the CPU: for 8-bit dtypes
    by a fused multiply-add, and NaN becomes the largest integer; for int32 by a multiplication and
    an addition, and NaN becomes the smallest integer. Raises ArgumentError for a complex array or
    invalid scale, zero point or dtype, and DeviceMemoryError.
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
