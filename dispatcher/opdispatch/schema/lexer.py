"""Lexer of the schema language.

A token is its own text, as in ``["f", "(", "Tensor", "x", ")", "->", "(", ")", ""]``: strings keep
their quotes, the empty token marks the end, and a character that starts no token becomes a token by
itself, which the parser rejects. The counterpart of PyTorch's lexer.h.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, TypeVar

from opdispatch.errors import SchemaError

A = TypeVar("A")
R = TypeVar("R")

END: Final = ""
NEWLINE: Final = "\n"

# Reserved words, which are not identifiers; they include TorchScript's keywords.
KEYWORDS: Final = frozenset(
    {
        *("def", "if", "else", "elif", "while", "return", "is", "True", "False", "None", "and"),
        *("or", "not", "global", "for", "in", "raise", "assert", "break", "continue", "del"),
        *("pass", "class", "import", "with", "as", "Ellipsis", "NoneType"),
    }
)

_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*"
# Numbers as strtod reads them in the C locale, including hexadecimal, without a sign; optional "j".
_NUMBER = (
    r"(?:0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)j?"
)
# Triple-quoted strings may span lines. An unclosed one is not a token, rather than an empty string
# followed by a quote.
_STRING = "|".join(
    rf"{q}{q}{q}(?:(?!{q}{q}{q})(?:\\[\s\S]|[^\\]))*{q}{q}{q}|{q}(?!{q}{q})(?:\\[\s\S]|[^{q}\\\n])*{q}"
    for q in "\"'"
)
_TOKEN = re.compile(rf"{_IDENTIFIER}|->|\.\.\.|{_NUMBER}|{_STRING}|[^\s]", re.ASCII)
_LINES = re.compile(
    rf"(?P<comment>#(?! type:)[^\n]*)|(?P<joint>\\\n)|(?P<newline>\n)|{_TOKEN.pattern}", re.ASCII
)
# An unclosed quote is always an error, so lexing stops there. Otherwise each escaped quote after it
# would start another search through the rest of the text, which is quadratic.
_QUOTES = frozenset("\"'")
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_")
_DIGITS = frozenset("0123456789")


def split(text: str) -> list[str]:
    """Split a text into tokens, with `END` as the last."""
    if "\n" in text or "#" in text or "\\" in text or '"' in text or "'" in text:
        return [token for token, _ in split_with_offsets(text)]
    tokens: list[str] = _TOKEN.findall(text)
    tokens.append(END)
    return tokens


def split_with_offsets(text: str) -> Iterator[tuple[str, int]]:
    """Yield the tokens of a text, each with the offset of its first character.

    Newlines are whitespace within brackets, at the beginning and at the end, and tokens elsewhere.
    An unclosed quote is yielded as the last token.
    """
    depth = 0
    line_is_empty = True
    newline: int | None = None  # significant if another token follows
    for match in _LINES.finditer(text):
        token = match.group()
        if match.lastgroup in ("comment", "joint"):
            continue
        if match.lastgroup == "newline":
            if depth == 0 and not line_is_empty:
                newline = match.start()
                line_is_empty = True
            continue
        if newline is not None:
            yield NEWLINE, newline
            newline = None
        line_is_empty = False
        yield token, match.start()
        if token in _QUOTES:
            break  # see there
        depth += (token in "([{") - (token in ")]}")
    yield END, len(text)


def is_identifier(token: str) -> bool:
    """Return whether the token is a valid name of an operator, argument, type or alias set."""
    return token[:1] in _LETTERS and token not in KEYWORDS


def is_number(token: str) -> bool:
    """Return whether the token is a number."""
    return token[:1] in _DIGITS or (len(token) > 1 and token[0] == "." and token[1] in _DIGITS)


def is_string(token: str) -> bool:
    """Return whether the token is a string literal."""
    return len(token) > 1 and token[0] in "\"'"


def describe(token: str) -> str:
    """Return the token as it is shown in error messages."""
    if token == END:
        return "the end"
    if token == NEWLINE:
        return "the end of the line"
    if len(token) > 60:
        token = f"{token[:57]}..."
    return token if is_string(token) else f"'{token}'"


class UnexpectedTokenError(Exception):
    """The token at ``place`` is not what the grammar expects there. Never leaves the parser."""

    def __init__(self, place: int, expected: str) -> None:
        super().__init__(expected)
        self.place = place
        self.expected = expected


class Lexer:
    """Token stream of a text, read from left to right without backtracking.

    All methods raise `UnexpectedTokenError` if the next token is not the expected one.
    """

    __slots__ = ("place", "tokens")

    def __init__(self, text: str) -> None:
        self.tokens = split(text)
        self.place = 0

    @property
    def current(self) -> str:
        """The next token."""
        return self.tokens[self.place]

    def fail(self, expected: str, place: int | None = None) -> NoReturn:
        """Raise UnexpectedTokenError for the next token, or the one at ``place``."""
        raise UnexpectedTokenError(self.place if place is None else place, expected)

    def accept(self, token: str) -> bool:
        """Consume the next token if it equals ``token``; return whether it did."""
        if self.tokens[self.place] != token:
            return False
        self.place += 1
        return True

    def expect(self, token: str, expected: str = "") -> None:
        """Consume the next token, which must equal ``token``."""
        if self.tokens[self.place] != token:
            raise UnexpectedTokenError(self.place, expected or describe(token))
        self.place += 1

    def take_identifier(self, expected: str) -> str:
        """Consume the next token, which must be a name, and return it."""
        token = self.tokens[self.place]
        if not is_identifier(token):
            reserved = f" ({token!r} is a reserved word)" if token in KEYWORDS else ""
            raise UnexpectedTokenError(self.place, expected + reserved)
        self.place += 1
        return token

    def take_as(self, read: Callable[[A], R], value: A) -> R:
        """Consume the next token and return ``read(value)``; a ValueError becomes
        UnexpectedTokenError."""
        try:
            result = read(value)
        except ValueError as error:
            raise UnexpectedTokenError(self.place, str(error)) from None
        self.place += 1
        return result


def schema_error(text: str, fault: UnexpectedTokenError, what: str) -> SchemaError:
    """Return a SchemaError that shows the offending line with a caret below the column."""
    tokens = list(split_with_offsets(text))
    token, offset = tokens[min(fault.place, len(tokens) - 1)]
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:].partition("\n")[0]
    column = offset - start + 1
    where = f"column {column}"
    if "\n" in text.strip():
        where = f"line {text.count(chr(10), 0, start) + 1}, {where}"
    # Long lines are truncated around the column.
    left = max(0, column - 100)
    right = "..." if len(line) > left + 160 else ""
    shown = f"{'...' if left else ''}{line[left : left + 160]}{right}"
    caret = " " * (column - 1 - left + (3 if left else 0)) + "^"
    return SchemaError(
        f"cannot read {what} at {where}: expected {fault.expected}, found {describe(token)}\n"
        f"    {shown.replace(chr(9), ' ')}\n    {caret}",
        schema=shown,
        column=str(column),
        expected=fault.expected,
        found=token,
    )
