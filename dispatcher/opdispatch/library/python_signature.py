"""Schemas as ``inspect.Signature``, which ``help`` and editors show for an operator."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Sequence
from typing import Any, Final

from opdispatch.schema.function_schema import NO_DEFAULT, Argument, FunctionSchema
from opdispatch.schema.types import (
    BOOL,
    FLOAT,
    INT,
    STR,
    SYM_INT,
    TENSOR,
    ListType,
    OptionalType,
    SchemaType,
)
from opdispatch.tensors.tensor import Tensor

_Kind = inspect.Parameter
_PLAIN: Final[dict[SchemaType, Any]] = {
    TENSOR: Tensor,
    INT: int,
    SYM_INT: int,
    FLOAT: float,
    BOOL: bool,
    STR: str,
}


def python_signature(schema: FunctionSchema) -> inspect.Signature:
    """Return the signature with which Python code can call an operator of that schema.

    Types without a Python equivalent are given by their schema names. An argument whose name is not
    valid in Python, and those before it, are positional-only.
    """
    arguments = schema.arguments
    given = [each.name for each in arguments]
    usable = [_is_name(each) and given.count(each) == 1 for each in given]
    positional = [each for each in arguments if not each.kwarg_only]
    odd = [place for place in range(len(positional)) if not usable[place]]
    only = odd[-1] + 1 if odd else 0
    parameters = []
    has_default = False
    for place, argument in enumerate(arguments):
        by_place = _Kind.POSITIONAL_OR_KEYWORD if place >= only else _Kind.POSITIONAL_ONLY
        kind = _Kind.KEYWORD_ONLY if argument.kwarg_only else by_place
        name = argument.name if usable[place] else f"argument_{place}"
        default = _Kind.empty if argument.default is NO_DEFAULT else argument.default
        # A schema may have arguments without a default after some with one; Python may not.
        if default is _Kind.empty and has_default and not argument.kwarg_only:
            default = ...
        has_default = has_default or default is not _Kind.empty
        annotation = annotation_of(argument.type)
        parameters.append(_Kind(name, kind, default=default, annotation=annotation))
    if schema.is_vararg:
        parameters = [each for each in parameters if each.kind is not _Kind.KEYWORD_ONLY]
        parameters.append(_Kind("args", _Kind.VAR_POSITIONAL))
    return inspect.Signature(parameters, return_annotation=_of_returns(schema.returns))


def annotation_of(type_: SchemaType) -> Any:
    """Return the annotation of a Python function's argument of that type."""
    match type_:
        case OptionalType(element):
            inner = annotation_of(element)
            return f"{inner} | None" if isinstance(inner, str) else inner | None
        case ListType(element):
            inner = annotation_of(element)
            return f"list[{inner}]" if isinstance(inner, str) else list[inner]  # type: ignore[valid-type]
    return _PLAIN.get(type_, str(type_))


def _of_returns(returns: Sequence[Argument]) -> Any:
    types = [annotation_of(each.type) for each in returns]
    if not types:
        return None
    if len(types) == 1:
        return types[0]
    if any(isinstance(each, str) for each in types):
        texts = [
            each if isinstance(each, str) else inspect.formatannotation(each) for each in types
        ]
        return f"tuple[{', '.join(texts)}]"
    return tuple[tuple(types)]  # type: ignore[misc]


def _is_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)
