"""Checks of the tags ``out`` and ``inplace``, which must agree with the schema.

Mirrors ``_validate_out_schema`` and ``_validate_inplace_schema`` of ``torch/library.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opdispatch.errors import SchemaError
from opdispatch.schema.function_schema import Argument, FunctionSchema
from opdispatch.schema.tag import Tag, tags_of
from opdispatch.schema.types import TENSOR

RETURNS_WRITTEN = ("out", "inplace")
"""Tags of operators that return exactly the arguments they write to."""


def checked_tags(schema: FunctionSchema, tags: str | Iterable[str] | None) -> tuple[Tag, ...]:
    """Return the tags of a definition, given as one tag or several.

    Raises SchemaError for an unknown tag, and for a tag that contradicts the schema.
    """
    tags = tags_of(tags)
    for tag, find_reason in zip(RETURNS_WRITTEN, (_why_not_out, _why_not_inplace), strict=True):
        if tag in tags and (reason := find_reason(schema)):
            raise SchemaError(f"{schema} has the tag {tag!r}, and {reason}", tag=tag)
    return tags


def _why_not_out(schema: FunctionSchema) -> str:
    """Return why a schema is not that of an out variant, or None if it is.

    An out variant returns exactly its keyword-only written tensors.
    """
    written = [each for each in schema.arguments if each.is_write]
    if not written:
        return "writes to no argument"
    for each in written:
        if not each.kwarg_only:
            return f"writes to {each.name!r}, which is not keyword-only"
        if each.type != TENSOR:
            return f"writes to {each.name!r}, which is not a Tensor"
    return _why_not_returned(schema, written)


def _why_not_inplace(schema: FunctionSchema) -> str:
    """Return why a schema is not that of an in-place operator, or None if it is.

    An in-place operator writes only to its first argument, and returns it.
    """
    first = schema.arguments[0] if schema.arguments else None
    if first is None or first.kwarg_only:
        return "has no positional argument"
    if not first.is_write or first.type != TENSOR:
        return f"its first argument is {first}, not a Tensor that is written to"
    for each in schema.arguments[1:]:
        if each.is_write:
            return f"writes to {each.name!r}, too"
    return _why_not_returned(schema, [first])


def _why_not_returned(schema: FunctionSchema, written: Sequence[Argument]) -> str:
    if len(schema.returns) != len(written):
        return f"returns {len(schema.returns)} values, and not the {len(written)} it writes to"
    for place, (returned, each) in enumerate(zip(schema.returns, written, strict=True)):
        if returned.type != TENSOR or returned.alias_info != each.alias_info:
            return f"return {place} is {returned}, and not {each.name!r}, which it writes to"
    return ""
