"""Tags that say something of a schema, and must be right: ``out`` and ``inplace``.

Mirrors ``_validate_out_schema`` and ``_validate_inplace_schema`` of ``torch/library.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opdispatch.errors import SchemaError
from opdispatch.schema.function_schema import Argument, FunctionSchema
from opdispatch.schema.tag import Tag, tags_of
from opdispatch.schema.types import TENSOR

RETURNS_WRITTEN = ("out", "inplace")
"""The tags of operators that return just what they write to."""


def checked_tags(schema: FunctionSchema, tags: str | Iterable[str] | None) -> tuple[Tag, ...]:
    """Return the tags of a definition, one or several.

    Raises SchemaError for a name that is none, and if the schema is another's.
    """
    tags = tags_of(tags)
    for tag, find_reason in zip(RETURNS_WRITTEN, (_why_not_out, _why_not_inplace), strict=True):
        if tag in tags and (reason := find_reason(schema)):
            raise SchemaError(f"{schema} has the tag {tag!r}, and {reason}", tag=tag)
    return tags


def _why_not_out(schema: FunctionSchema) -> str:
    """Return why an out variant's schema is wrong.

    Its results must be all its keyword-only written tensors.
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
    """Return why an in-place schema is wrong.

    It must write only to its first argument, and return it.
    """
    first = schema.arguments[0] if schema.arguments else None
    if first is None or first.kwarg_only:
        return "has no positional argument"
    if not first.is_write or first.type != TENSOR:
        return f"its first argument is {first}, and no Tensor that is written to"
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
