"""Conversion of Python values to the types of the schema language, for kernels.

`converter_of` builds one function for each type. It returns the value as kernels get it: a Python
number for a NumPy scalar, a new list for a list or tuple, a dtype for ``ScalarType``, a string for
``Device``, ``Layout`` and ``MemoryFormat``. The rules are those of PyTorch's Python binding,
without its silent losses: 1.5 is not accepted as an int, even in a tensor, nor as a bool, nor is
None accepted as a bool.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from opdispatch.arrays import PLAIN_KEY_BITS
from opdispatch.boxing.basic_conversion import (
    BASIC_CONVERTERS,
    Converter,
    anything,
    nothing,
    refusal,
)
from opdispatch.schema.types import (
    ANY,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    SYM_BOOL,
    SYM_INT,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    SchemaType,
    TupleType,
    TypeVariable,
    UnionType,
)
from opdispatch.tensors.tensor import Tensor

_TEXTS = (str, bytes, bytearray, memoryview)


@cache
def converter_of(type_: SchemaType) -> Converter:
    """Return the function that converts a value to that type, or raises TypeError.

    The error says what was expected and what was given, as in ``expected int, got str 'a'``; the
    caller adds the names of the operator and the argument.
    """
    return _make(type_, str(type_))


def _make(type_: SchemaType, expected: str) -> Converter:
    """Return a converter whose errors name ``expected``, the full type as text."""
    match type_:
        case OptionalType(element):
            return _optional(_make(element, expected))
        case ListType(element, size):
            return _list(element, size, expected)
        case TupleType(elements):
            return _tuple(tuple(map(converter_of, elements)), expected)
        case DictType(key, value):
            return _dict(converter_of(key), converter_of(value), expected)
        case UnionType(members):
            return _union(members, expected)
        case TypeVariable():
            return anything
    make = BASIC_CONVERTERS.get(type_)
    return nothing(expected) if make is None else make(expected)


def _optional(convert_element: Converter) -> Converter:
    def convert(value: Any) -> Any:
        return None if value is None else convert_element(value)

    return convert


def _list(element: SchemaType, size: int | None, expected: str) -> Converter:
    convert_item = converter_of(element)
    # A single number for a list of declared size is repeated.
    broadcasts = size is not None and element in (INT, SYM_INT, FLOAT, COMPLEX, BOOL, SYM_BOOL)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list | tuple) and not _is_sequence(value):
            if broadcasts and size is not None and value is not None:
                try:
                    return [convert_item(value)] * size
                except TypeError:
                    pass
            raise refusal(expected, value)
        try:
            return [convert_item(item) for item in value]
        except TypeError:
            raise _first_refusal(convert_item, value, expected) from None

    return _usual_tensors(convert) if element is TENSOR else convert


def _is_sequence(value: Any) -> bool:
    """Return whether it is a sequence of separate values: neither a string nor bytes."""
    return isinstance(value, Sequence) and not isinstance(value, _TEXTS)


def _usual_tensors(convert: Converter) -> Converter:
    """Return ``convert`` with a fast path for tensor types seen before."""
    type_of, list_, tuple_, plain, tensor = type, list, tuple, PLAIN_KEY_BITS, Tensor

    def convert_tensors(value: Any) -> list[Any]:
        if type_of(value) is list_ or type_of(value) is tuple_:
            for item in value:
                if type_of(item) not in plain and type_of(item) is not tensor:
                    break
            else:
                return [*value]
        converted: list[Any] = convert(value)
        return converted

    return convert_tensors


def _first_refusal(convert_item: Converter, values: Any, expected: str) -> TypeError:
    for place, item in enumerate(values):
        try:
            convert_item(item)
        except TypeError as error:
            return TypeError(f"{error}, at [{place}] of {expected}")
    return TypeError(f"expected {expected}")


def _tuple(converters: tuple[Converter, ...], expected: str) -> Converter:
    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list):
            raise refusal(expected, value)
        if len(value) != len(converters):
            raise TypeError(f"{refusal(expected, value)} of {len(value)}")
        items = []
        for place, (convert_item, item) in enumerate(zip(converters, value, strict=True)):
            try:
                items.append(convert_item(item))
            except TypeError as error:
                raise TypeError(f"{error}, at [{place}] of {expected}") from None
        return tuple(items)

    return convert


def _dict(convert_key: Converter, convert_value: Converter, expected: str) -> Converter:
    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise refusal(expected, value)
        items = {}
        for key, item in value.items():
            try:
                items[convert_key(key)] = convert_value(item)
            except TypeError as error:
                raise TypeError(f"{error}, at [{key!r}] of {expected}") from None
        return items

    return convert


_EXACT = {int: INT, float: FLOAT, complex: COMPLEX, bool: BOOL, str: STR, type(None): NONE}


def _union(members: tuple[SchemaType, ...], expected: str) -> Converter:
    converters = {member: converter_of(member) for member in members}

    def convert(value: Any) -> Any:
        # 1 is the int of a Union(float, int), although float would accept it, too.
        own = converters.get(_EXACT.get(type(value), ANY))
        for convert_member in (own, *converters.values()) if own else converters.values():
            try:
                return convert_member(value)
            except TypeError:
                continue
        raise refusal(expected, value)

    return convert
