"""Default values in the schema language: conversion from text to the values that kernels receive.

Like C's ``stoll`` and ``stod``, with which PyTorch reads numbers, the functions here stop at the
first character that is not part of the number. All raise ValueError with a description of the
expected text, which the parser completes to an error message.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache

from opdispatch.schema.scalar_type import (
    CODE_OF_NAME,
    LAYOUTS,
    MEMORY_FORMATS,
    find_dtype_of_code,
    find_dtype_of_name,
)
from opdispatch.schema.types import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    LAYOUT,
    MEMORY_FORMAT,
    SCALAR_TYPE,
    ListType,
    OptionalType,
    SchemaType,
)

# Words that stand for numbers. The dtypes here are allowed for any argument, the others
# (CODE_OF_NAME) only for arguments of type ScalarType.
_NAMED_CONSTANTS = {
    "float": 6,
    "complex": 9,
    "long": 4,
    "strided": 0,
    "Mean": 1,
    "contiguous_format": 0,
}
_STOLL = re.compile(r"-?[0-9]+", re.ASCII)
_STOD = re.compile(
    r"-?(?:(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?)"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)",
    re.ASCII,
)
_DEVICE = re.compile(r"([a-z_]+)(?::(0|[1-9][0-9]*))?", re.ASCII)
DEVICE_TYPES = frozenset(
    {
        *("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga"),
        *("maia", "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone"),
    }
)
"""Names of PyTorch's device types."""

_ESCAPES = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "\n": "\n",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "v": "\v",
    "t": "\t",
}
_ESCAPE = re.compile(rb"\\(?:([0-3][0-7]{2})|([\s\S]))")
_PYTHON_TYPE: dict[SchemaType, type] = {FLOAT: float, INT: int, BOOL: bool, COMPLEX: complex}


def number_of(text: str, type_: SchemaType) -> int | float | complex:
    """Convert a signed numeric literal to a default of the plain type."""
    if type_ is COMPLEX or "j" in text:
        # PyTorch drops the last character, whatever it is: `complex z=15` is 1j.
        return complex(0.0, _stod(text[:-1]))
    if type_ is FLOAT or "." in text or "e" in text:
        return _stod(text)
    return integer_of(text)


def integer_of(text: str) -> int:
    """Return the integer at the beginning of a numeric literal; it must fit in 64 bits."""
    match = _STOLL.match(text)
    if match is None:
        raise ValueError("an integer")
    # Strip leading zeros first: int() rejects texts of more than a few thousand digits.
    digits = match.group().lstrip("-").lstrip("0")
    value = int(digits or "0") if len(digits) < 20 else 1 << 64
    value = -value if text.startswith("-") else value
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an integer of 64 bits")
    return value


def _stod(text: str) -> float:
    match = _STOD.match(text)
    if match is None:
        raise ValueError("a number")
    digits = match.group()
    try:
        value = float.fromhex(digits) if match.group(1) else float(digits)
    except OverflowError:
        value = float("inf")
    mantissa = re.split("[pP]" if match.group(1) else "[eE]", digits.removeprefix("-"))[0]
    is_zero = not mantissa.lower().removeprefix("0x").strip("0.")
    if abs(value) > sys.float_info.max or (abs(value) < sys.float_info.min and not is_zero):
        raise ValueError("a number within the range of a double")
    return value


def string_of(token: str) -> str:
    """Return the text of a string literal."""
    quotes = 3 if token[:3] in ('"""', "'''") and len(token) >= 6 else 1
    try:
        return _ESCAPE.sub(_unescape, token[quotes:-quotes].encode()).decode()
    except UnicodeError:
        raise ValueError("a string that is UTF-8, its octal escapes included") from None


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, char = match.groups()
    if octal is not None:
        return bytes([int(octal, 8)])
    letter = char.decode("latin-1")
    if letter not in _ESCAPES:
        raise ValueError(
            "one of the escapes \\\\ \\' \\\" \\a \\b \\f \\n \\t \\v or \\000 to \\377"
        )
    return _ESCAPES[letter].encode()


def constant_of(name: str, real_type: SchemaType) -> int:
    """Return PyTorch's enum value for a word such as ``float`` as a default of ``real_type``."""
    if name in _NAMED_CONSTANTS:
        return _NAMED_CONSTANTS[name]
    takes_dtype = real_type is SCALAR_TYPE or real_type == OptionalType(SCALAR_TYPE)
    if takes_dtype and name in CODE_OF_NAME:
        return CODE_OF_NAME[name]
    names = "a dtype's name or " if takes_dtype else ""
    raise ValueError(f"{names}a number, True, False, None or a quoted string")


@lru_cache(maxsize=256)
def check_device(text: str) -> str:
    """Return the text if it names a device, such as ``cpu`` or ``cuda:1``."""
    match = _DEVICE.fullmatch(text)
    if match is None or match.group(1) not in DEVICE_TYPES:
        raise ValueError("a device such as 'cpu', 'cuda' or 'cuda:1'")
    return text


def check_list(values: list[object], plain_element: SchemaType) -> None:
    """Raise ValueError unless all values are valid in a default list of ``plain_element``."""
    expected = _PYTHON_TYPE.get(plain_element)
    if expected is None:
        raise ValueError(f"no default: a list of {plain_element} can only have None")
    if any(type(value) is not expected for value in values):
        raise ValueError(f"a list of {plain_element}")


def kernel_value(value: object, real_type: SchemaType) -> object:
    """Convert a default to the form kernels get: a dtype or a name for an enum value, a tuple for
    a list.
    """
    if isinstance(value, list):
        element = real_type.element if isinstance(real_type, ListType) else real_type
        return tuple(kernel_value(item, element) for item in value)
    base = real_type.element if isinstance(real_type, OptionalType) else real_type
    if real_type is FLOAT and type(value) is int:  # the number of a dtype's name
        return float(value)
    if base is SCALAR_TYPE:
        dtype = None
        if type(value) is int:
            dtype = find_dtype_of_code(value)
        elif isinstance(value, str):
            dtype = find_dtype_of_name(value)
        return value if dtype is None else dtype
    if type(value) is int and base in (LAYOUT, MEMORY_FORMAT):
        names = LAYOUTS if base is LAYOUT else MEMORY_FORMATS
        return names[value] if 0 <= value < len(names) else value
    return value
