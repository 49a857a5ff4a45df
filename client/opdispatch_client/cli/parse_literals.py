"""Parses one argument on the command line, before any schema is known. Pure functions.

true false none                  the words, in lower case or as Python spells them
3  -2.5  1e-3  inf  1+2j         numbers
"quoted text"                    text, with JSON's escapes
[1, 2]  {"a": 1}                 JSON
tensor:[[1, 2], [3, 4]]          a tensor; tensor:float32:[1, 2] with a dtype
dtype:float32                    a dtype
anything else                    text as it is
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from opdispatch.errors import ArgumentError
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.literal_words import (
    NONE_WORDS,
    TOO_LONG,
    WORDS,
    parse_number,
    shorten,
)
from opdispatch_wire.dtypes import dtype_from_name
from opdispatch_wire.errors import WireError
from opdispatch_wire.nesting_limits import MAX_NESTING, check_nesting

# JSON follows, or a dtype, a colon and JSON.
_TENSOR = re.compile(r"(?:tensor|array):(?:([A-Za-z]\w*):)?(.*)", re.DOTALL)


def parse_literal(text: str) -> Any:
    """Return the value of the text on its own.

    Raises UsageError for malformed JSON, or an invalid tensor or dtype.
    """
    if text in NONE_WORDS:
        return None
    if text in WORDS:
        return WORDS[text]
    if (number := parse_number(text)) is not None:
        return number
    if text[:1] in ("[", "{", '"'):
        return parse_json(text)
    if match := _TENSOR.fullmatch(text):
        return parse_tensor(match[2], dtype=match[1])
    if text.startswith("dtype:"):
        return parse_dtype(text.removeprefix("dtype:"))
    return text


def parse_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of that name. Raises UsageError for an unknown name."""
    try:
        return dtype_from_name(name, at=repr(f"dtype:{name}"))
    except WireError as error:
        raise UsageError(str(error)) from None


def parse_json(text: str) -> Any:
    """Parse JSON. Raises UsageError that shows where the error is."""
    try:
        value = json.loads(text)
        check_nesting(value, "")
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{shorten(text)} is not well-formed JSON: {error.msg} at column {error.colno}"
        ) from None
    except (RecursionError, ArgumentError):
        raise UsageError(
            f"{shorten(text)} is nested too deeply; the limit is {MAX_NESTING} levels"
        ) from None
    except ValueError:
        raise UsageError(f"{shorten(text)} has {TOO_LONG}") from None
    return value


def parse_tensor(text: str, *, dtype: str | None) -> np.ndarray[Any, Any]:
    """Return the tensor with that JSON as its elements. Raises UsageError."""
    number = parse_number(text)
    elements = parse_json(text) if number is None else number
    return build_tensor(elements, dtype=parse_dtype(dtype) if dtype else None, text=text)


def build_tensor(
    elements: Any, *, dtype: np.dtype[Any] | None = None, text: str | None = None
) -> np.ndarray[Any, Any]:
    """Return an array of a number, or of nested lists of numbers.

    `text` is what the user wrote. Raises UsageError if the lists are ragged or contain anything but
    numbers.
    """
    shown = shorten(json.dumps(elements, default=str) if text is None else text)
    try:
        array = np.asarray(elements)
        # JSON has no complex numbers; in a list they are written as strings.
        if array.dtype.kind == "U":
            array = array.astype(np.complex128)
    except ValueError:
        raise UsageError(
            f"{shown} is not a tensor: expected a number, or nested lists of equal length"
        ) from None
    if array.dtype.kind not in "biufc":
        raise UsageError(f"{shown} is not a tensor: its elements have to be numbers or booleans")
    if dtype is None:
        return array
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise UsageError(f"{shown} has complex elements, which {dtype.name} cannot hold")
    if dtype.kind in "iu" and not _fits(array, dtype):
        raise UsageError(f"{shown} has elements that {dtype.name} cannot hold")
    return array.astype(dtype)


def _fits(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    if array.size == 0 or array.dtype.kind == "b":
        return True
    if array.dtype.kind == "f":
        return False
    limits = np.iinfo(dtype)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max
