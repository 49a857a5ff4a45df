"""Read the words of ``opdispatch call`` as values for plain schemas. Pure functions.

Anything else raises NotPlainError: it is left to typer and ``convert_by_schema``, which also report
errors.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from opdispatch_client.cli import standard_input
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.literal_words import NONE_WORDS, WORDS, parse_number, parse_text
from opdispatch_client.cli.plain_command import NotPlainError
from opdispatch_client.cli.split_arguments import split_keywords
from opdispatch_wire.v1 import execution_pb2, values_pb2

_SCHEMA = re.compile(r"([\w:.]+)\(([^()]*)\) -> (Tensor|int|float|bool|str|\(\))", re.ASCII)
_ARGUMENT = re.compile(r"(Tensor|int|float|bool|str)(\??) (\w+)(=[^\"'\[\]]*)?", re.ASCII)
# Words with a file, or with an explicit dtype.
_NO_LITERAL = re.compile(r"@|(tensor|array|dtype):")
_MOST_NUMBERS = 100_000


class PlainArgument(NamedTuple):
    """An argument of a schema. ``type`` is Tensor, int, float, bool or str."""

    name: str
    type: str
    is_optional: bool
    has_default: bool
    kwarg_only: bool


def read_schema(text: str) -> tuple[str, list[PlainArgument], str]:
    """Return an operator's name, its arguments, and its return type, or "()"."""
    found = _SCHEMA.fullmatch(text)
    if found is None:
        raise NotPlainError
    arguments = []
    kwarg_only = False
    for part in found[2].split(", ") if found[2] else ():
        if part == "*":
            kwarg_only = True
            continue
        argument = _ARGUMENT.fullmatch(part)
        if argument is None:
            raise NotPlainError
        kind, mark, name, default = argument.groups()
        arguments.append(PlainArgument(name, kind, bool(mark), default is not None, kwarg_only))
    return found[1], arguments, found[3]


def plain_request(
    name: str, arguments: Sequence[PlainArgument], texts: Iterable[str]
) -> execution_pb2.CallRequest:
    """Return the call of an operator with these texts as arguments."""
    request = execution_pb2.CallRequest(operator=name)
    try:
        by_place, by_name = split_keywords(texts)
        in_order = [each for each in arguments if not each.kwarg_only]
        for argument, text in zip(in_order, by_place, strict=False):
            _fill(request.args.add(), text, argument)
        known = {each.name: each for each in arguments}
        for key, text in by_name.items():
            _fill(request.kwargs[key], text, known[key])
    except (UsageError, KeyError, ValueError, RecursionError):
        raise NotPlainError from None
    named = {each.name for each in in_order[: len(by_place)]}
    missing = {each.name for each in arguments if not each.has_default} - named - by_name.keys()
    if missing or len(by_place) > len(in_order) or named & by_name.keys():
        raise NotPlainError
    return request


def _fill(message: values_pb2.Value, text: str, argument: PlainArgument) -> None:
    """Write the value of the text for that argument. Also raises ValueError."""
    if argument.is_optional and text in NONE_WORDS:
        message.none.SetInParent()
        return
    if text in standard_input.NAMES or _NO_LITERAL.match(text):
        raise NotPlainError
    if argument.type == "str":
        message.text = parse_text(text)
        return
    if argument.type == "Tensor" and text[:1] == "[":
        _fill_tensor(message.tensor, json.loads(text))
        return
    value = WORDS[text] if text in WORDS else parse_number(text)
    match argument.type, value:
        case "bool", bool():
            message.boolean = value
        case _, bool():
            raise NotPlainError
        case "int", int():
            message.integer = value
        case "float", int() | float():
            message.floating = float(value)
        case "Tensor", int() | float():
            _fill_tensor(message.tensor, value)
        case _:
            raise NotPlainError


def _fill_tensor(message: values_pb2.Tensor, elements: Any) -> None:
    """Write a number, or nested lists of numbers, with NumPy's default dtype for them."""
    shape: list[int] = []
    level = [elements]
    while isinstance(level[0], list):
        lengths = {len(each) if isinstance(each, list) else 0 for each in level}
        if len(lengths) > 1 or not all(lengths):
            raise NotPlainError
        shape += lengths
        level = [item for each in level for item in each]
        if len(level) > _MOST_NUMBERS:
            raise NotPlainError
    types = set(map(type, level))
    if not types <= {int, float} or sys.byteorder != "little":
        raise NotPlainError
    code, dtype = ("d", "float64") if float in types else ("q", "int64")
    try:
        message.data = array(code, level).tobytes()
    except OverflowError:
        raise NotPlainError from None
    message.dtype = dtype
    message.shape.extend(shape)
    message.device = "cpu"
