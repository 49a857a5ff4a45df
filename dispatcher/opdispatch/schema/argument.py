"""The arguments and returns of a schema, with their defaults and alias annotations.

All values here are frozen. See Note [Printed schemas read back] in ``function_schema.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from opdispatch.schema.scalar_type import LAYOUTS, MEMORY_FORMATS, find_code_of_dtype
from opdispatch.schema.types import (
    COMPLEX,
    INT,
    LAYOUT,
    MEMORY_FORMAT,
    ClassType,
    ListType,
    OptionalType,
    SchemaType,
    TupleType,
    WrapperType,
)


class NoDefault(Enum):
    """The type of `NO_DEFAULT`."""

    NO_DEFAULT = "no default"

    def __repr__(self) -> str:
        return "NO_DEFAULT"


NO_DEFAULT: Final = NoDefault.NO_DEFAULT
"""Marks an argument without a default, since None is a valid default."""


@dataclass(frozen=True, slots=True)
class AliasInfo:
    """Alias sets of an argument before and after the call, and whether the operator writes to it.

    ``Tensor(a! -> b)`` is ``AliasInfo({"a"}, {"b"}, True)``; ``*`` is the set that may alias
    anything; ``Tensor!`` is in a set of its own named ``$0``, ``$1``, ... ``contained`` has the
    annotation of a list's element: `AliasInfo` of ``Tensor(a!)[]`` has no sets, is written to,
    and contains ``AliasInfo({"a"}, {"a"}, True)``.
    """

    before_set: frozenset[str] = frozenset()
    after_set: frozenset[str] = frozenset()
    is_write: bool = False
    contained: AliasInfo | None = None

    def __str__(self) -> str:
        """Return the annotation without `contained`; empty for one that only contains."""
        if not self.before_set:
            return ""
        if any(name.startswith("$") for name in self.before_set):
            return "!"
        after = "" if self.after_set == self.before_set else f" -> {_joined(self.after_set)}"
        return f"({_joined(self.before_set)}{'!' if self.is_write else ''}{after})"


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """One argument or return value of a schema; the name of a return may be empty.

    ``default`` is in the form that kernels get: a Python number, bool, string or None; a tuple for
    a list; a dtype for ``ScalarType``; a name for ``Layout`` and ``MemoryFormat``; `NO_DEFAULT`
    without one. Like PyTorch's, the parser does not check that it has the argument's type.

    Arguments are compared as PyTorch compares them: by plain type (Note [Real and plain types]),
    so ``SymInt`` equals ``int``, and with defaults of one type, so 1 differs from True and 1.0.
    """

    name: str
    type: SchemaType
    default: object = NO_DEFAULT
    kwarg_only: bool = False
    alias_info: AliasInfo | None = None

    @property
    def real_type(self) -> SchemaType:
        """The type, by PyTorch's name. PyTorch's ``type`` corresponds to ``type.plain`` here."""
        return self.type

    @property
    def has_default(self) -> bool:
        """Whether the argument may be omitted."""
        return self.default is not NO_DEFAULT

    def has_default_value(self) -> bool:
        """Return ``has_default``, by PyTorch's name."""
        return self.has_default

    @property
    def default_value(self) -> object:
        """The default, or None if there is none; lists are returned as lists."""
        default = self.default if self.has_default else None
        return list(default) if isinstance(default, tuple) else default

    @property
    def is_write(self) -> bool:
        """Whether the operator writes to the argument."""
        return self.alias_info is not None and self.alias_info.is_write

    @property
    def is_out(self) -> bool:
        """Whether this is an ``out`` argument: keyword-only and written to."""
        return self.kwarg_only and self.is_write

    @property
    def dispatches(self) -> bool:
        """Whether the argument contributes to the dispatch keys of a call."""
        return self.type.dispatches

    @property
    def N(self) -> int | None:  # noqa: N802 - PyTorch's name
        """The declared size of a list, also of an optional one: 2 for ``int[2]?``."""
        inner = self.type.element if isinstance(self.type, OptionalType) else self.type
        return inner.size if isinstance(inner, ListType) else None

    def has_default_of(self, other: Argument) -> bool:
        """Return whether the two defaults are the same, of the same type."""
        return _typed(self) == _typed(other)

    def _identity(self) -> tuple[object, ...]:
        kind = self.type.plain, self.N, _typed(self)
        return (self.name, *kind, self.kwarg_only, self.alias_info)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Argument):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __str__(self) -> str:
        text = _annotated(self.type, self.alias_info)
        if self.name:
            text = f"{text} {self.name}"
        if self.default is NO_DEFAULT:
            return text
        return f"{text}={_default_text(self.type, self.default)}"


def _joined(alias_sets: frozenset[str]) -> str:
    # PyTorch's grammar allows no names after the wildcard.
    return "|".join(sorted(alias_sets, key=lambda name: (name == "*", name)))


def _annotated(type_: SchemaType, alias: AliasInfo | None) -> str:
    """Return the type's text with each alias annotation after the type that it annotates."""
    if alias is None:
        return str(type_)
    if isinstance(type_, OptionalType):
        if isinstance(type_.element, TupleType | WrapperType | ClassType):
            # Optionals take no annotation of their own, but unions do, so it is printed as a union.
            return f"Union({type_.element}, NoneType){alias}"
        return f"{_annotated(type_.element, alias)}?"
    if isinstance(type_, ListType):
        size = "" if type_.size is None else type_.size
        return f"{_annotated(type_.element, alias.contained)}[{size}]{alias}"
    return f"{type_}{alias}"


def _typed(argument: Argument) -> object:
    """Return the default with its type, as a key for comparison: 1 and True are different
    defaults."""
    default = _code_of_word(argument.type, argument.default)
    if isinstance(default, tuple):
        return tuple((type(value), value) for value in default)
    return type(default), default


_IN_TEXT = (int, float, complex, str, tuple, type(None))
"""Types of defaults that need no NumPy; any other default may be a dtype, which is checked last."""


def _code_of_word(type_: SchemaType, default: object) -> object:
    """Return PyTorch's enum value of a dtype, layout or memory format.

    Any other default is returned unchanged.
    """
    inner = type_.element if isinstance(type_, OptionalType) else type_
    if not isinstance(default, _IN_TEXT) and isinstance(default, np.dtype):
        code = find_code_of_dtype(default)
        return default if code is None else code
    for kind, words in ((LAYOUT, LAYOUTS), (MEMORY_FORMAT, MEMORY_FORMATS)):
        if inner is kind and isinstance(default, str) and default in words:
            return words.index(default)
    return default


def _default_text(type_: SchemaType, default: object) -> str:
    if isinstance(default, tuple) and isinstance(type_, ListType):
        texts = [_default_text(type_.element, value) for value in default]
        # Equal ints are printed as the single number from which they were broadcast.
        if type_.element is INT and type_.size == len(texts) > 1 and len(set(texts)) == 1:
            return texts[0]
        return f"[{', '.join(texts)}]"
    if type_ is COMPLEX and type(default) is int:  # meaningless, but PyTorch accepts it
        return _WORDS_FOR_NUMBERS[default]
    match default := _code_of_word(type_, default):
        case str():
            return _quoted(default)
        case float():
            return _float_text(default)
        case complex():
            real = "" if default.real == 0 else f"{_float_text(default.real)}+"
            return f"{real}{_float_text(default.imag)}j"
        case None | int():
            return str(default)
        case np.dtype():
            return _quoted(default.name)
    return str(default)


# A complex default cannot be written as an integer, but it can be one of these words.
_WORDS_FOR_NUMBERS = {0: "strided", 1: "Mean", 4: "long", 6: "float", 9: "complex"}


def _float_text(value: float) -> str:
    if -(2.0**63) <= value < 2.0**63 and value == int(value):
        return f"{int(value)}."
    return f"{value:.17g}"


_ESCAPES = {
    "\\": "\\\\",
    "'": "\\'",
    '"': '\\"',
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\v": "\\v",
    "\t": "\\t",
}


def _quoted(text: str) -> str:
    escaped = []
    for char in text:
        if char in _ESCAPES:
            escaped.append(_ESCAPES[char])
        elif " " <= char <= "~":
            escaped.append(char)
        else:
            escaped.extend(f"\\{byte:03o}" for byte in char.encode())
    return f'"{"".join(escaped)}"'
