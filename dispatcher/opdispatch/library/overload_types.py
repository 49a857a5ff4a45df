"""Determines from the types of arguments whether an overload accepts them.

``Dispatcher.resolve_overload`` tries the overloads in order with the actual arguments. The result
usually depends only on their types, and can then be cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays import PLAIN_KEY_BITS
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    SCALAR,
    STR,
    SYM_INT,
    TENSOR,
    ListType,
    OptionalType,
    SchemaType,
)
from opdispatch.tensors.tensor import Tensor

_NONE = type(None)
_NUMBERS = (bool, int, float, complex)
_LISTS = (list, tuple)

# By type of the schema language: Python types whose values are never accepted, and those whose
# values always are. Values of other types, such as int for a 64-bit ``int``, must be checked.
_NEVER: dict[SchemaType, frozenset[type]] = {
    TENSOR: frozenset({*_NUMBERS, str, _NONE, *_LISTS}),
    SCALAR: frozenset({str, _NONE, Tensor, *_LISTS}),
    INT: frozenset({float, complex, str, _NONE, *_LISTS}),
    SYM_INT: frozenset({float, complex, str, _NONE, *_LISTS}),
    STR: frozenset({*_NUMBERS, _NONE, Tensor, *_LISTS}),
}
_ALWAYS: dict[SchemaType, frozenset[type]] = {
    TENSOR: frozenset({Tensor}),
    SCALAR: frozenset({bool, float, complex}),
    BOOL: frozenset({bool}),
    FLOAT: frozenset({float}),
    STR: frozenset({str}),
}
_OF_NUMBERS = (SCALAR, INT, SYM_INT, FLOAT, COMPLEX, BOOL)
"""Schema types for which an array with one element is accepted."""


def takes_always(schema: FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the schema accepts arguments of these types, whatever their values are."""
    pairs = _pairs(schema, args, kwargs)
    return pairs is not None and all(_always(kind, type(value)) for kind, value in pairs)


def takes_never(
    schema: FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any], *, of_numbers: bool
) -> bool:
    """Return whether the schema accepts no arguments of these types, whatever their values are.

    An array of one element may be accepted as a number; with ``of_numbers``, that counts.
    """
    pairs = _pairs(schema, args, kwargs)
    return pairs is None or any(_never(kind, type(value), of_numbers) for kind, value in pairs)


def _pairs(
    schema: FunctionSchema, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[SchemaType, Any]] | None:
    """Pair the given values with their schema types; None if the schema accepts no such call."""
    arguments = schema.arguments
    if len(args) > sum(not argument.kwarg_only for argument in arguments):
        return None
    others = arguments[len(args) :]
    if not kwargs.keys() <= {argument.name for argument in others}:
        return None
    if any(a.name not in kwargs and not a.has_default for a in others):
        return None
    named = ((a.type, kwargs[a.name]) for a in others if a.name in kwargs)
    return [*zip((a.type for a in arguments), args, strict=False), *named]


def _always(kind: SchemaType, given: type) -> bool:
    if isinstance(kind, OptionalType):
        return given is _NONE or _always(kind.element, given)
    return given in _ALWAYS.get(kind, ()) or (kind is TENSOR and given in PLAIN_KEY_BITS)


def _never(kind: SchemaType, given: type, of_numbers: bool) -> bool:
    if isinstance(kind, OptionalType):
        return given is not _NONE and _never(kind.element, given, of_numbers)
    if isinstance(kind, ListType) and kind.size is None:
        return given in (*_NUMBERS, str, _NONE) or _is_array(given)
    if kind in _OF_NUMBERS and _is_array(given) and not of_numbers:
        return True
    return given in _NEVER.get(kind, ()) or (kind is STR and _is_array(given))


def _is_array(cls: type) -> bool:
    # The name first: accessing NumPy would load it if it is deferred.
    return cls is Tensor or (cls.__name__ == "ndarray" and cls is np.ndarray)


def any_could_be_number(values: Iterable[Any]) -> bool:
    """Return whether an array among the values could also be accepted as a number."""
    for value in values:  # no generator: this is on the path of each such call
        cls = type(value)
        if _is_array(cls) and (value.size == 1 or (cls is Tensor and value.size is None)):
            return True
    return False
