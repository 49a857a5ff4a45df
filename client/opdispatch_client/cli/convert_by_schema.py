"""Converts the arguments of ``opdispatch call`` by the operator's schema.

The schema decides what a word means: for a ``str`` argument "5" stays a string, for a ``Tensor``
argument a number or a nested list becomes an array, and ``@FILE`` is the file's text for the
former, the array in the file for the latter. Values that do not match the schema are left
unchanged, since the daemon's error explains more than one raised here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opdispatch.boxing.argument_conversion import converter_of
from opdispatch.schema.function_schema import Argument, FunctionSchema
from opdispatch.schema.types import (
    DEVICE,
    FLOAT,
    SCALAR_TYPE,
    STR,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    SchemaType,
)
from opdispatch_client.cli import standard_input
from opdispatch_client.cli.array_files import read_array, read_arrays
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.literal_words import NONE_WORDS, parse_text
from opdispatch_client.cli.parse_literals import build_tensor, parse_dtype, parse_literal
from opdispatch_client.cli.split_arguments import split_keywords
from opdispatch_client.cli.standard_input import check_read_once
from opdispatch_client.cli.text_files import read_text


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of one call, and the matching overload, if any."""

    args: list[Any]
    kwargs: dict[str, Any]
    schema: FunctionSchema | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """Ways in which the schema may override the apparent type of a word."""

    tensors: bool
    """Whether numbers and lists become tensors."""
    texts: bool
    """Whether numbers, lists and words such as "true" stay strings."""


_AS_IT_LOOKS = _Reading(tensors=False, texts=False)
_WITH_TENSORS = _Reading(tensors=True, texts=False)
_FREELY = _Reading(tensors=True, texts=True)


def read_arguments(texts: Sequence[str], overloads: Sequence[FunctionSchema]) -> CallArguments:
    """Read the arguments of a call for the first of the `overloads` that accepts them.

    Overloads that accept them by their apparent types come first, then those for which numbers or
    lists have to become tensors, then those for which they have to stay strings. If there is only
    one overload, the arguments are read for it in any case. Raises UsageError for a word or file
    that cannot be read at all.
    """
    positional, by_name = split_keywords(texts)
    check_read_once([*positional, *by_name.values()])
    if len(overloads) == 1:
        return _read_for(positional, by_name, overloads[0], _FREELY)
    for reading in (_AS_IT_LOOKS, _WITH_TENSORS, _FREELY):
        for schema in overloads:
            # A file that is no array for this overload may be text for another one.
            with contextlib.suppress(UsageError):
                arguments = _read_for(positional, by_name, schema, reading)
                if _fits(arguments, schema):
                    return arguments
    args = [read_value(text, None) for text in positional]
    kwargs = {name: read_value(text, None) for name, text in by_name.items()}
    return CallArguments(args, kwargs, None)


def read_value(text: str, schema_type: SchemaType | None, reading: _Reading = _FREELY) -> Any:
    """Return the value of `text` as an argument of that type; None: of any type.

    Raises UsageError if it cannot be read at all.
    """
    inner = schema_type.element if isinstance(schema_type, OptionalType) else schema_type
    if text in NONE_WORDS and inner is not schema_type:
        return None
    if inner is STR and (text.startswith("@") or text in standard_input.NAMES):
        return read_text("-" if text in standard_input.NAMES else text[1:])
    if (inner is STR or inner is DEVICE) and reading.texts:
        return parse_text(text)
    if inner is SCALAR_TYPE and not text.startswith("dtype:"):
        return parse_dtype(parse_text(text))
    if text.startswith("@"):
        wants_list = isinstance(inner, ListType) and inner.dispatches
        return list(read_arrays(text[1:]).values()) if wants_list else read_array(text[1:])
    return convert_value(parse_literal(text), inner, tensors=reading.tensors)


def convert_value(value: Any, schema_type: SchemaType | None, *, tensors: bool = True) -> Any:
    """Convert a parsed value to tensors, floats, dtypes and files where the type requires it."""
    match schema_type:
        case OptionalType(element):
            return None if value is None else convert_value(value, element, tensors=tensors)
        case ListType(element) if isinstance(value, list):
            return [convert_value(item, element, tensors=tensors) for item in value]
        case DictType(_, element) if isinstance(value, dict):
            return {k: convert_value(item, element, tensors=tensors) for k, item in value.items()}
    if schema_type is TENSOR:
        if isinstance(value, str) and value.startswith("@"):
            return read_array(value[1:])
        if tensors and isinstance(value, bool | int | float | complex | list):
            return build_tensor(value)
    if schema_type is FLOAT and type(value) is int:
        return float(value)
    if schema_type is SCALAR_TYPE and isinstance(value, str):
        return parse_dtype(value)
    return value


def _read_for(
    positional: Sequence[str], by_name: dict[str, str], schema: FunctionSchema, reading: _Reading
) -> CallArguments:
    types: dict[str, SchemaType] = {a.name: a.type for a in schema.arguments}
    in_order = [argument.type for argument in schema.arguments if not argument.kwarg_only]
    padded: list[SchemaType | None] = [*in_order, *[None] * len(positional)]
    args = [
        _read_named(f"argument {place}", text, padded[place - 1], reading)
        for place, text in enumerate(positional, 1)
    ]
    kwargs = {
        name: _read_named(f"argument {name}", text, types.get(name), reading)
        for name, text in by_name.items()
    }
    return CallArguments(args, kwargs, schema)


def _read_named(what: str, text: str, schema_type: SchemaType | None, reading: _Reading) -> Any:
    try:
        return read_value(text, schema_type, reading)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None


def _fits(arguments: CallArguments, schema: FunctionSchema) -> bool:
    """Return whether the schema accepts these arguments."""
    in_order = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(arguments.args) > len(in_order) and not schema.is_vararg:
        return False
    given: dict[str, Any] = {
        argument.name: value for argument, value in zip(in_order, arguments.args, strict=False)
    }
    if given.keys() & arguments.kwargs.keys():
        return False
    given |= arguments.kwargs
    by_name = {argument.name: argument for argument in schema.arguments}
    missing = [a for a in schema.arguments if a.name not in given and not a.has_default]
    if missing or not given.keys() <= by_name.keys():
        return False
    return all(_takes(by_name[name], value) for name, value in given.items())


def _takes(argument: Argument, value: Any) -> bool:
    try:
        converter_of(argument.type)(value)
    except (TypeError, ValueError):
        return False
    return True
