"""Backward and forward compatibility of two versions of an operator's schema.

Mirrors ``FunctionSchema::isBackwardCompatibleWith`` and ``isForwardCompatibleWith`` of
``ATen/core/function_schema.cpp``. A new schema is *backward* compatible if every call written for
the old one still works, and *forward* compatible if calls serialized with the new one, without
trailing arguments that have their default values, can be read with the old one. ``out`` arguments
come last, so new arguments precede them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from opdispatch.schema.argument import Argument
from opdispatch.schema.operator_name import OperatorName
from opdispatch.schema.types import (
    ANY,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    SCALAR,
    OptionalType,
    SchemaType,
    TupleType,
    TypeVariable,
    UnionType,
)


class Signature(Protocol):
    """The attributes of a ``FunctionSchema`` that are compared."""

    @property
    def name(self) -> OperatorName:
        """The operator's name."""

    @property
    def arguments(self) -> Sequence[Argument]:
        """Arguments of the operator."""

    @property
    def returns(self) -> Sequence[Argument]:
        """Declared results of the operator."""

    @property
    def is_vararg(self) -> bool:
        """Whether ``...`` ends the arguments."""

    @property
    def is_varret(self) -> bool:
        """Whether ``...`` ends the returns."""


def is_backward_compatible(new: Signature, old: Signature) -> bool:
    """Return whether every call written for ``old`` is valid for ``new``, with compatible
    results."""
    if not _have_one_structure(new, old) or len(new.arguments) < len(old.arguments):
        return False
    # Arguments may become more general, and returns more specific.
    if not all(_replaces(o, n) for n, o in zip(new.returns, old.returns, strict=True)):
        return False
    first_new, first_old = _first_out(new), _first_out(old)
    if first_new < first_old:
        return False
    added = new.arguments[first_old:first_new]
    return all(_replaces(n, o) for n, o in _corresponding(new, old)) and all(
        argument.has_default for argument in added
    )


def find_forward_incompatibility(new: Signature, old: Signature) -> str | None:
    """Return in one sentence why ``old`` cannot read calls written with ``new``; None if it can."""
    if not _have_one_structure(new, old):
        return "their names, their numbers of returns or their '...' differ"
    first_new, first_old = _first_out(new), _first_out(old)
    if len(new.arguments) - first_new != len(old.arguments) - first_old:
        return "the number of out arguments differs"
    for place, (one, other) in enumerate(_corresponding(new, old)):
        if not _reads(one, other):
            out = "out argument" if place >= min(first_new, first_old) else "argument"
            return f"the {out} {one.name!r} is not forward compatible with the older one"
    for argument in new.arguments[first_old:first_new]:
        if not argument.has_default:
            return f"the new argument {argument.name!r} has no default"
        if isinstance(argument.default, tuple):
            return f"the default of the new argument {argument.name!r} is a list"
    return None


def _have_one_structure(new: Signature, old: Signature) -> bool:
    return (new.name, new.is_vararg, new.is_varret, len(new.returns)) == (
        old.name,
        old.is_vararg,
        old.is_varret,
        len(old.returns),
    )


def _first_out(schema: Signature) -> int:
    places = (place for place, argument in enumerate(schema.arguments) if argument.is_out)
    return next(places, len(schema.arguments))


def _corresponding(new: Signature, old: Signature) -> Iterator[tuple[Argument, Argument]]:
    """Yield the pairs of corresponding arguments.

    Arguments before ``out`` are matched by position, then the ``out`` arguments.
    """
    first_new, first_old = _first_out(new), _first_out(old)
    yield from zip(new.arguments[:first_new], old.arguments[:first_old], strict=False)
    yield from zip(new.arguments[first_new:], old.arguments[first_old:], strict=False)


def _replaces(new: Argument, old: Argument) -> bool:
    """Return whether any value given for ``old`` may be given for ``new``."""
    return (
        _have_one_place(new, old)
        and is_subtype(old.type.plain, new.type.plain)
        and (not old.has_default or new.has_default_of(old))
    )


def _reads(new: Argument, old: Argument) -> bool:
    """Return whether any value given for ``new`` may be given for ``old``, defaults included."""
    return (
        _have_one_place(new, old)
        and is_subtype(new.type.plain, old.type.plain)
        and (new.has_default_of(old) if old.has_default else not new.has_default)
    )


def _have_one_place(new: Argument, old: Argument) -> bool:
    return (
        new.name == old.name
        and new.N == old.N
        and new.alias_info == old.alias_info
        and (old.kwarg_only or not new.kwarg_only)
    )


def is_subtype(sub: SchemaType, base: SchemaType) -> bool:
    """Return whether every value of the plain type ``sub`` is one of ``base``, by PyTorch's rules.

    List types are invariant, since lists are mutable. A bool is not a Scalar.
    """
    if base is ANY or sub == base:
        return True
    match sub, base:
        case OptionalType(inner), OptionalType(wider):
            return is_subtype(inner, wider)
        case UnionType(members), _:
            return all(is_subtype(member, base) for member in members)
        case _, UnionType(members):
            return any(is_subtype(sub, member) for member in members)
        case _, OptionalType(wider):
            return sub is NONE or is_subtype(sub, wider)
        case TupleType(ones), TupleType(others) if len(ones) == len(others):
            return all(map(is_subtype, ones, others))
        case TypeVariable(), TypeVariable():
            return True
    return base is SCALAR and sub in (INT, FLOAT, COMPLEX)
