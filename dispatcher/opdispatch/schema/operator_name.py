"""The name of an operator, and its grammar: ``ns::name.overload``.

Mirrors ``ATen/core/operator_name.h``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from opdispatch.schema.lexer import END, KEYWORDS, Lexer, UnexpectedTokenError, schema_error


class OperatorName(NamedTuple):
    """``namespace::name.overload``; the namespace and the overload name may be empty.

    ``name`` includes the namespace, as PyTorch's does. A tuple, so that hash and comparison run in
    C: each registration looks the name up a dozen times.
    """

    name: str
    overload_name: str = ""

    @staticmethod
    def parse(text: str) -> OperatorName:
        """Read ``ns::name`` or ``ns::name.overload``. Raises SchemaError."""
        return parse_operator_name(text)

    @property
    def namespace(self) -> str:
        """The part before ``::``, or the empty string."""
        return self.name.partition("::")[0] if "::" in self.name else ""

    @property
    def unqualified_name(self) -> str:
        """The name without its namespace and overload name."""
        return self.name.rpartition("::")[2]

    def __str__(self) -> str:
        return f"{self.name}.{self.overload_name}" if self.overload_name else self.name

    def __call__(self) -> str:
        """Return the full name as text, so that ``op.name()`` works as for PyTorch's operators."""
        return str(self)


@lru_cache(maxsize=4096)
def parse_operator_name(text: str) -> OperatorName:
    """Parse an operator name, ``ns::name`` or ``ns::name.overload``. Raises SchemaError."""
    if (plain := find_plain_name(text)) is not None:
        return plain
    lexer = Lexer(text)
    try:
        name = read_operator_name(lexer)
        lexer.expect(END, "the end of the operator's name")
    except UnexpectedTokenError as error:
        raise schema_error(text, error, "the operator's name") from None
    return name


def read_operator_name(lexer: Lexer) -> OperatorName:
    """Read a name from the next tokens. Raises UnexpectedTokenError."""
    name = lexer.take_identifier("the operator's name")
    if lexer.accept(":"):
        lexer.expect(":")
        name = f"{name}::{lexer.take_identifier('a name behind the namespace')}"
    if not lexer.accept("."):
        return OperatorName(name)
    overload = lexer.take_identifier("the overload's name")
    if not _is_legal_overload(overload):
        lexer.fail("an overload name other than 'default' and '__...'", lexer.place - 1)
    return OperatorName(name, overload)


def find_plain_name(text: str) -> OperatorName | None:
    """Return the operator name of a simple text without using the lexer, or None."""
    if (found := _PLAIN_NAME.fullmatch(text)) is None:
        return None
    name, overload = found[1], found[2] or ""
    if not KEYWORDS.isdisjoint((*name.split("::"), overload)) or (
        overload and not _is_legal_overload(overload)
    ):
        return None
    return OperatorName(name, overload)


_PLAIN_NAME = re.compile(r"((?:[A-Za-z_]\w*::)?[A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?", re.ASCII)


def _is_legal_overload(name: str) -> bool:
    # `ops.ns.name.default` is the overload without a name, and names with two leading
    # underscores are Python's own attributes.
    return name != "default" and not name.startswith("__")
