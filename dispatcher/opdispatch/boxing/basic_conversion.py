"""The values of the types without parameters, such as ``int`` and ``Device``.

`BASIC_CONVERTERS` maps each type that has values in Python to the factory of its converter. A
converter first checks for the exact Python type, and then for everything unusual.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from opdispatch.arrays import convert_tensor, describe_type
from opdispatch.schema.default import check_device
from opdispatch.schema.scalar_type import (
    LAYOUTS,
    MEMORY_FORMATS,
    find_dtype_of_code,
    find_dtype_of_name,
    is_numeric,
)
from opdispatch.schema.types import (
    ANY,
    ANY_ENUM,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    GENERATOR,
    INT,
    LAYOUT,
    MEMORY_FORMAT,
    NONE,
    QSCHEME,
    SCALAR,
    SCALAR_TYPE,
    STR,
    SYM_BOOL,
    SYM_INT,
    TENSOR,
    SchemaType,
)
from opdispatch.tensors.tensor import Tensor

Converter = Callable[[Any], Any]

QSCHEMES: Final = (
    *("per_tensor_affine", "per_channel_affine", "per_tensor_symmetric"),
    *("per_channel_symmetric", "per_channel_affine_float_qparams"),
)
"""The names of quantization schemes."""

_INT64_MIN = -(1 << 63)
_INT64_MAX = (1 << 63) - 1
_UINT64_MAX = (1 << 64) - 1  # the largest Scalar in PyTorch; an int is smaller


def refusal(expected: str, value: object) -> TypeError:
    """Return the error for a value of another type: what was expected and what was given."""
    return TypeError(f"expected {expected}, got {_describe(value)}")


def _describe(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, str | bytes) and len(value) > 60:
        return f"{describe_type(value)} {value[:57]!r}..."
    if isinstance(value, bool | int | float | complex | str | bytes):
        try:
            shown = repr(value)
        except ValueError:  # Python refuses to print integers of thousands of digits
            return "an enormous int"
        return f"{describe_type(value)} {shown if len(shown) <= 60 else f'{shown[:57]}...'}"
    return describe_type(value)


def _number(value: Any) -> Any:
    """Return the Python number in a NumPy scalar or 0-d array; any other value unchanged.

    A time is not a number.
    """
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        if value.dtype.kind in "mM":  # for nanoseconds, ``item`` returns an int
            return value
        number = value.item()
        # The widest floats stay NumPy scalars in item().
        if isinstance(number, np.floating):
            return float(number)
        return complex(number) if isinstance(number, np.complexfloating) else number
    return value


def _number_of_one(value: Any) -> Any:
    """Convert like `_number`, and also a tensor or array with one element, of any shape.

    PyTorch's binding accepts such tensors for ``int``, ``float``, ``complex`` and ``bool``, but not
    for ``Scalar``. Gradients end here, as they do at ``item()``.
    """
    if isinstance(value, Tensor) and None not in value.shape and value.size == 1:
        return _number(value.item())
    if isinstance(value, np.ndarray) and value.size == 1:
        return _number(value.reshape(()))
    return _number(value)


def _int_of_one(value: Any) -> int | None:
    """Return the int in a tensor or array with one integer element; None for another dtype.

    The dtype decides, not the element, because the overload of a call is cached by types.
    """
    found = _number_of_one(value)
    return int(found) if isinstance(found, int) else None


def _is_real(value: Any) -> bool:
    """Return whether the value's class has a conversion to float.

    True for fractions, decimals and tensors of other libraries.
    """
    cls = type(value)
    makes_floats = hasattr(cls, "__float__") or hasattr(cls, "__index__")
    # Arrays with dimensions also convert to float, and so do times, as their counts.
    return makes_floats and not isinstance(value, np.ndarray | np.datetime64 | np.timedelta64)


def anything(value: Any) -> Any:
    """Return the converter of a type that accepts any value."""
    return value


def nothing(expected: str) -> Converter:
    """Return the converter of a type that accepts no value."""

    def convert(value: Any) -> Any:
        raise TypeError(
            f"expected {expected}, a type that has no values here, got {_describe(value)}"
        )

    return convert


def _int(expected: str) -> Converter:
    def convert(value: Any) -> int:
        if type(value) is not int:
            try:
                # int() is needed, too, since operator.index(True) is True.
                value = int(operator.index(_number(value)))
            except TypeError:
                found = _int_of_one(value)
                if found is None:
                    raise refusal(expected, value) from None
                value = found
        if _INT64_MIN <= value <= _INT64_MAX:
            return value  # type: ignore[no-any-return]
        raise TypeError(f"{refusal(expected, value)}, out of the 64-bit range")

    return convert


def _floating(kind: type[float | complex], numbers: tuple[type, ...]) -> Callable[[str], Converter]:
    """Return a factory of converters to ``kind``, for ``numbers`` and convertible classes."""

    def make(expected: str) -> Converter:
        def convert(value: Any) -> Any:
            if type(value) is kind:
                return value
            found = _number_of_one(value)
            if not isinstance(found, numbers) and not _is_real(found):
                raise refusal(expected, value)
            try:
                return kind(found)
            except OverflowError:
                error = f"{refusal(expected, value)}, out of the range of a double"
                raise TypeError(error) from None
            except (TypeError, ValueError, RuntimeError):  # raised by a class without such a value
                raise refusal(expected, value) from None

        return convert

    return make


def _bool(expected: str) -> Converter:
    def convert(value: Any) -> bool:
        if value is True or value is False:
            return value
        found = _number_of_one(value)
        if isinstance(found, int):
            return bool(found)
        raise refusal(expected, value)

    return convert


def _str(expected: str) -> Converter:
    def convert(value: Any) -> str:
        if type(value) is str:
            return value
        if isinstance(value, str):
            return str(value)
        raise refusal(expected, value)

    return convert


def _scalar(expected: str) -> Converter:
    def convert(value: Any) -> int | float | complex:
        if type(value) is float or (type(value) is int and _INT64_MIN <= value <= _UINT64_MAX):
            return value
        found = _number(value)
        if isinstance(found, bool):
            return found
        if isinstance(found, int):
            if _INT64_MIN <= found <= _UINT64_MAX:
                return int(found)
            raise TypeError(f"{refusal(expected, value)}, out of the 64-bit range")
        if isinstance(found, float):
            return float(found)
        if isinstance(found, complex):
            return complex(found)
        raise refusal(expected, value)

    return convert


_USUAL_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@functools.cache
def usual_dtypes() -> dict[object, np.dtype[Any]]:
    """Return the most common dtypes, by name, NumPy type, Python type, and dtype.

    Other checks take longer than most conversions.
    """
    found: dict[object, np.dtype[Any]] = {
        kind: np.dtype(kind) for kind in (bool, int, float, complex)
    }
    for dtype in map(np.dtype, _USUAL_NAMES):
        found |= {dtype: dtype, dtype.type: dtype, dtype.name: dtype}
    return found


def _scalar_type(expected: str) -> Converter:
    def convert(value: Any) -> np.dtype[Any]:
        try:
            return usual_dtypes()[value]
        except (KeyError, TypeError):  # unusual, or unhashable
            pass
        dtype: np.dtype[Any] | None = None
        if isinstance(value, np.dtype):
            dtype = value
        elif isinstance(value, str):
            dtype = find_dtype_of_name(value)
        elif isinstance(value, type) and issubclass(value, np.generic):
            dtype = np.dtype(value)
        elif type(value) is int:
            dtype = find_dtype_of_code(value)
        if dtype is None or not is_numeric(dtype):
            raise refusal(f"{expected} (a numeric dtype or its name)", value)
        # a dtype argument has no byte order
        return dtype if dtype.isnative else dtype.newbyteorder("=")

    return convert


def _one_of(names: tuple[str, ...]) -> Callable[[str], Converter]:
    known = frozenset(names)

    def make(expected: str) -> Converter:
        def convert(value: Any) -> str:
            if isinstance(value, str) and value in known:
                return str(value)
            raise refusal(f"{expected} ({', '.join(names)})", value)

        return convert

    return make


def _device(expected: str) -> Converter:
    def convert(value: Any) -> str:
        if isinstance(value, str):
            try:
                return check_device(str(value))
            except ValueError:
                pass
        raise refusal(f"{expected} (such as 'cpu', 'cuda' or 'cuda:1')", value)

    return convert


def _generator(expected: str) -> Converter:
    def convert(value: Any) -> Any:
        # Not only NumPy's: CuPy's generators have the same name and use.
        if any(cls.__name__ in ("Generator", "RandomState") for cls in type(value).__mro__[:-1]):
            return value
        raise refusal(f"{expected} (opdispatch.Generator or numpy.random.Generator)", value)

    return convert


def _none(expected: str) -> Converter:
    def convert(value: Any) -> None:
        if value is not None:
            raise refusal("None", value)

    return convert


def _enum(expected: str) -> Converter:
    def convert(value: Any) -> enum.Enum:
        if isinstance(value, enum.Enum):
            return value
        raise refusal(f"{expected} (a member of an enum)", value)

    return convert


BASIC_CONVERTERS: Final[dict[SchemaType, Callable[[str], Converter]]] = {
    TENSOR: lambda expected: convert_tensor,
    ANY: lambda expected: anything,
    INT: _int,
    SYM_INT: _int,
    FLOAT: _floating(float, (int, float)),
    COMPLEX: _floating(complex, (int, float, complex)),
    BOOL: _bool,
    SYM_BOOL: _bool,
    STR: _str,
    SCALAR: _scalar,
    SCALAR_TYPE: _scalar_type,
    LAYOUT: _one_of(LAYOUTS),
    MEMORY_FORMAT: _one_of(MEMORY_FORMATS),
    QSCHEME: _one_of(QSCHEMES),
    DEVICE: _device,
    GENERATOR: _generator,
    NONE: _none,
    ANY_ENUM: _enum,
}
"""Factories of converters by type, called with the text for errors.

Types that are missing here have no values in Python: storages, streams, futures, classes and so on.
"""
