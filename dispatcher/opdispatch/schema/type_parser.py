"""The part of the schema language that describes types and alias sets.

The counterpart of PyTorch's schema_type_parser.cpp.
"""

from __future__ import annotations

from typing import Final

from opdispatch.schema.argument import AliasInfo
from opdispatch.schema.lexer import Lexer, is_identifier
from opdispatch.schema.types import (
    ANY,
    BASIC_TYPES,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    INT,
    STR,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    SchemaType,
    TupleType,
    TypeVariable,
    WrapperType,
    optional_of,
    union_of,
)

MAX_NESTING: Final = 64
"""Maximum nesting depth of types. PyTorch has no limit and overflows its stack."""

_DICT_KEYS = frozenset({ANY, INT, FLOAT, COMPLEX, BOOL, TENSOR, DEVICE, STR})
_WRAPPERS = frozenset({"Future", "Await", "RRef"})
# Type names of other languages, with the schema type that was probably meant.
_MEANT = {
    "double": "float",
    "Float": "float",
    "Number": "Scalar",
    "dtype": "ScalarType",
    "int64_t": "int",
    "Int": "int",
    "integer": "int",
    "Bool": "bool",
    "boolean": "bool",
    "string": "str",
    "String": "str",
    "List": "T[]",
    "list": "T[]",
    "Optional": "T?",
    "Tuple": "(T, U)",
    "tuple": "(T, U)",
    "dict": "Dict(K, V)",
    "Dimname": "str",
}


class SchemaTypeParser:
    """Parses types from a lexer; raises `UnexpectedTokenError` for invalid text."""

    __slots__ = ("_depth", "_height", "allow_typevars", "fresh_sets", "lexer")

    def __init__(self, lexer: Lexer, *, allow_typevars: bool) -> None:
        self.lexer = lexer
        self.allow_typevars = allow_typevars
        self.fresh_sets = 0  # number of alias sets created for a bare `!`
        self._depth = 0  # nesting depth of brackets at the next token
        self._height = 0  # alias annotation of the type parsed last, as a tree

    def parse_type(self) -> tuple[SchemaType, AliasInfo | None]:
        """Parse a type with all its ``[]`` and ``?``, but without a list's size."""
        lexer = self.lexer
        type_, alias = self._parse_without_suffix()
        while True:
            if lexer.current == "[" and lexer.tokens[lexer.place + 1] == "]":
                lexer.place += 2
                type_ = ListType(type_)
                alias = container_alias(alias, self.parse_alias_annotation())
            elif lexer.current == "?":
                type_ = lexer.take_as(optional_of, type_)
            else:
                return type_, alias
            self._height += 1
            if self._height > MAX_NESTING:
                lexer.fail(_TOO_DEEP)

    def parse_alias_annotation(self) -> AliasInfo | None:
        """Parse an alias annotation: ``(a! -> b|c)``, ``!``, or nothing."""
        lexer = self.lexer
        if lexer.accept("!"):
            name = f"${self.fresh_sets}"
            self.fresh_sets += 1
            return AliasInfo(frozenset({name}), frozenset(), is_write=True)
        if not lexer.accept("("):
            return None
        before = self._parse_alias_sets()
        is_write = lexer.accept("!")
        after = self._parse_alias_sets() if lexer.accept("->") else before
        lexer.expect(")", "')' after the alias annotation")
        return AliasInfo(before, after, is_write)

    def _parse_alias_sets(self) -> frozenset[str]:
        sets: set[str] = set()
        while True:
            if self.lexer.accept("*"):
                sets.add("*")
            elif "*" not in sets:  # PyTorch reads no name after the wildcard
                sets.add(self.lexer.take_identifier("an alias set, such as 'a'"))
            if not self.lexer.accept("|"):
                return frozenset(sets)

    def _parse_without_suffix(self) -> tuple[SchemaType, AliasInfo | None]:
        lexer = self.lexer
        token = lexer.current
        self._height = 0
        basic = BASIC_TYPES.get(token)
        if basic is not None and (basic is TENSOR or lexer.tokens[lexer.place + 1] != "."):
            lexer.place += 1
            return basic, self.parse_alias_annotation()
        if token == "(":
            return TupleType(self._parse_inner("")), None
        if token in _WRAPPERS:
            return WrapperType(token, self._parse_inner(token, count=1)[0]), None
        if token == "Dict":
            return self._parse_dict(), self.parse_alias_annotation()
        if token == "Union":
            place = lexer.place
            members = self._parse_inner(token)
            try:
                return union_of(members), self.parse_alias_annotation()
            except ValueError:
                lexer.fail("a Union of at least two different types", place)
        if token == "__torch__":
            return self._parse_class(), None
        if self.allow_typevars and "a" <= token[:1] <= "z" and is_identifier(token):
            return TypeVariable(self._parse_dotted_name()), self.parse_alias_annotation()
        return lexer.fail(_expected_type(token))

    def _parse_dotted_name(self) -> str:
        lexer = self.lexer
        name = lexer.take_identifier("a type")
        while lexer.current == "." and is_identifier(lexer.tokens[lexer.place + 1]):
            name = f"{name}.{lexer.tokens[lexer.place + 1]}"
            lexer.place += 2
        return name

    def _parse_inner(self, word: str, count: int | None = None) -> tuple[SchemaType, ...]:
        """Parse ``word(T, U, ...)``; only a bare bracket may be empty."""
        lexer = self.lexer
        if word:
            lexer.place += 1
        lexer.expect("(", f"'(' after {word!r}")
        self._depth += 1
        if self._depth > MAX_NESTING:
            lexer.fail(_TOO_DEEP)
        types: list[SchemaType] = []
        height = 0
        fresh_sets = self.fresh_sets
        more = bool(word) or lexer.current != ")"
        while more:
            types.append(self.parse_type()[0].plain)
            height = max(height, self._height)
            more = len(types) != count and lexer.accept(",")
        lexer.expect(")", "')'" if len(types) == count else "',' or ')'")
        self._depth -= 1
        self._height = height + 1
        self.fresh_sets = fresh_sets  # annotations inside are dropped
        return tuple(types)

    def _parse_dict(self) -> SchemaType:
        place = self.lexer.place
        types = self._parse_inner("Dict", count=2)
        if len(types) != 2:
            self.lexer.fail("',' and the type of the values", self.lexer.place - 1)
        if types[0] not in _DICT_KEYS:
            self.lexer.fail(
                "keys of a Dict to be int, float, complex, bool, str, Tensor, Device or Any",
                place + 2,
            )
        return DictType(*types)

    def _parse_class(self) -> SchemaType:
        lexer = self.lexer
        path = [lexer.current]
        lexer.place += 1
        for expected in ("torch", "classes", "", ""):
            lexer.expect(".", "'.', as in __torch__.torch.classes.NAMESPACE.NAME")
            word = lexer.current
            if expected and word != expected:
                lexer.fail(f"'{expected}', as in __torch__.torch.classes.NAMESPACE.NAME")
            path.append(
                lexer.take_identifier("a name, as in __torch__.torch.classes.NAMESPACE.NAME")
            )
        return ClassType(".".join(path))


def container_alias(element: AliasInfo | None, own: AliasInfo | None) -> AliasInfo | None:
    """Combine the alias annotations of a list and its element."""
    if element is None:
        return own
    if own is None:
        return AliasInfo(is_write=element.is_write, contained=element)
    return AliasInfo(own.before_set, own.after_set, own.is_write, element)


_TOO_DEEP = f"types nested at most {MAX_NESTING} deep"


def _expected_type(token: str) -> str:
    expected = "a type such as Tensor, int, float, bool, str, Scalar or ScalarType"
    meant = _MEANT.get(token)
    if meant is None and is_identifier(token):
        import difflib  # used only for error messages

        close = difflib.get_close_matches(token, BASIC_TYPES, n=1)
        meant = close[0] if close else None
    return expected if meant is None else f"{expected}; perhaps {meant!r}"
