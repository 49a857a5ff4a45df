"""Parser of the schema language of PyTorch 2.13, from text to `FunctionSchema`.

Accepts the same texts as ``torch._C.parse_schema`` with the same results, including its quirks
(``0x10`` is 0 as an int). See Note [Deliberate differences from PyTorch's parser].
"""

from __future__ import annotations

import functools
from typing import Final

from opdispatch.schema import default as schema_default
from opdispatch.schema.argument import NO_DEFAULT, AliasInfo, Argument
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.lexer import (
    END,
    Lexer,
    UnexpectedTokenError,
    is_identifier,
    is_number,
    is_string,
    schema_error,
)
from opdispatch.schema.operator_name import OperatorName, find_plain_name, read_operator_name
from opdispatch.schema.type_parser import SchemaTypeParser, container_alias
from opdispatch.schema.types import (
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    GENERATOR,
    INT,
    QUANTIZER,
    SCALAR,
    STR,
    TENSOR,
    ListType,
    OptionalType,
    SchemaType,
    optional_of,
)

# Note [Deliberate differences from PyTorch's parser]
#
# * Any class below `__torch__.torch.classes` parses. PyTorch requires it to be registered.
# * The size of a list is at most MAX_LIST_SIZE. PyTorch takes it modulo 2**32, and fills
#   memory with the default of an `int[2000000000] x=0`.
# * Types nest at most MAX_NESTING deep. PyTorch overflows its stack.
# * The octal escapes of a string must give UTF-8. PyTorch fails when the string is used.
# * Members of a Union are merged only if they are equal, or if one of them is Any.

MAX_LIST_SIZE: Final = 65_536

Signature = tuple[tuple[Argument, ...], tuple[Argument, ...], bool, bool]
"""Arguments, returns, and whether either ends with ``...``."""

_TAKES_CONSTANT = frozenset({STR, SCALAR, INT, BOOL, FLOAT, COMPLEX})
_TAKES_NONE = frozenset({TENSOR, GENERATOR, QUANTIZER})


def parse_schema(text: str, *, allow_typevars: bool = True, namespace: str = "") -> FunctionSchema:
    """Parse a schema. A name without a namespace is put into ``namespace``.

    With ``allow_typevars=False``, as in ``Library.define``, lower-case words that are not types are
    errors instead of type variables, except in the namespaces ``aten`` and ``prim``. Raises
    SchemaError, which shows the text, the column and what was expected there.
    """
    if not allow_typevars:
        allow_typevars = text.startswith(("aten::", "prim::"))
    try:
        head, bracket, rest = text.partition("(")
        if bracket and (name := find_plain_name(head)) is not None:
            if namespace and "::" not in name.name:
                name = OperatorName(f"{namespace}::{name.name}", name.overload_name)
            try:
                return FunctionSchema(name, *_parse_signature(bracket + rest, allow_typevars))
            except UnexpectedTokenError:  # its position is relative to the parenthesis
                pass
        parsed = _SchemaParser(text, allow_typevars=allow_typevars).parse_schema()
        return parsed.with_namespace(namespace) if namespace else parsed
    except UnexpectedTokenError as error:
        raise schema_error(text, error, "the schema") from None


@functools.lru_cache(maxsize=1024)
def _parse_signature(text: str, allow_typevars: bool) -> Signature:
    """Parse a schema without its name. Cached, since many operators share few signatures."""
    return _SchemaParser(text, allow_typevars=allow_typevars).parse_signature()


class _SchemaParser:
    """Parses a schema or a part of one; raises `UnexpectedTokenError` for invalid text."""

    __slots__ = ("lexer", "types")

    def __init__(self, text: str, *, allow_typevars: bool) -> None:
        self.lexer = Lexer(text)
        self.types = SchemaTypeParser(self.lexer, allow_typevars=allow_typevars)

    def parse_schema(self) -> FunctionSchema:
        return FunctionSchema(read_operator_name(self.lexer), *self.parse_signature())

    def parse_signature(self) -> Signature:
        arguments, is_vararg = self.parse_arguments()
        self.lexer.expect("->", "'->' and the types of the returns, or '-> ()' if there are none")
        returns, is_varret = self.parse_returns()
        self.lexer.expect(END, "the end of the schema")
        return arguments, returns, is_vararg, is_varret

    def parse_arguments(self) -> tuple[tuple[Argument, ...], bool]:
        lexer = self.lexer
        lexer.expect("(", "'(' and the arguments")
        arguments: list[Argument] = []
        places: list[int] = []
        kwarg_only = is_vararg = False
        more = not lexer.accept(")")
        while more:
            if is_vararg:
                lexer.fail("no argument behind '...'")
            if lexer.accept("*"):
                kwarg_only = True
            elif lexer.accept("..."):
                is_vararg = True
            else:
                places.append(lexer.place)
                arguments.append(self.parse_argument(kwarg_only=kwarg_only))
            more = lexer.accept(",")
            if not more:
                lexer.expect(")", "',' or ')'")
        misplaced = _find_misplaced(arguments, is_vararg)
        if misplaced is not None:
            index, expected = misplaced
            lexer.fail(expected, places[index])
        return tuple(arguments), is_vararg

    def parse_returns(self) -> tuple[tuple[Argument, ...], bool]:
        lexer = self.lexer
        if lexer.accept("..."):
            return (), True
        if not lexer.accept("("):
            return (self.parse_return(),), False
        returns: list[Argument] = []
        is_varret = False
        more = not lexer.accept(")")
        while more:
            if is_varret:
                lexer.fail("no return behind '...'")
            if lexer.accept("..."):
                is_varret = True
            else:
                returns.append(self.parse_return())
            more = lexer.accept(",")
            if not more:
                lexer.expect(")", "',' or ')'")
        return tuple(returns), is_varret

    def parse_argument(self, *, kwarg_only: bool) -> Argument:
        type_, alias = self.parse_sized_type()
        name = self.lexer.take_identifier("the argument's name")
        default = self.parse_default(type_) if self.lexer.accept("=") else NO_DEFAULT
        return Argument(name, type_, default, kwarg_only, alias)

    def parse_return(self) -> Argument:
        type_, alias = self.parse_sized_type()
        name = self.lexer.current
        if not is_identifier(name):
            return Argument("", type_, alias_info=alias)
        self.lexer.place += 1
        return Argument(name, type_, alias_info=alias)

    def parse_sized_type(self) -> tuple[SchemaType, AliasInfo | None]:
        """Parse a type; only the outermost list may have a size."""
        lexer = self.lexer
        type_, alias = self.types.parse_type()
        if not lexer.accept("["):
            return type_, alias
        if not is_number(lexer.current):
            lexer.fail("the size of the list, or ']'")
        type_ = ListType(type_, lexer.take_as(_list_size, lexer.current))
        lexer.expect("]")
        alias = container_alias(alias, self.types.parse_alias_annotation())
        return (optional_of(type_) if lexer.accept("?") else type_), alias

    def parse_default(self, type_: SchemaType) -> object:
        lexer = self.lexer
        place = lexer.place
        plain = type_.plain
        if plain in _TAKES_CONSTANT or isinstance(plain, OptionalType):
            value = self.parse_constant(plain, type_)
        elif plain in _TAKES_NONE:
            lexer.expect("None", f"None, the only default of an argument of type {type_}")
            value = None
        elif plain is DEVICE:
            value = lexer.take_as(_device_of, lexer.current)
        elif isinstance(type_, ListType):
            value = self.parse_list(type_)
        else:
            lexer.fail(f"no default, which an argument of type {type_} cannot have")
        try:
            return schema_default.kernel_value(value, type_)
        except ValueError as error:
            lexer.fail(str(error), place)

    def parse_list(self, type_: ListType) -> list[object]:
        lexer = self.lexer
        place = lexer.place
        plain, real = type_.element.plain, type_.element
        values: list[object] = []
        if type_.size is not None and lexer.current != "[" and not is_identifier(lexer.current):
            values = [self.parse_constant(plain, real)] * type_.size
        else:
            lexer.expect("[", "a list in square brackets")
            more = not lexer.accept("]")
            while more:
                values.append(self.parse_constant(plain, real))
                more = lexer.accept(",")
                if not more:
                    lexer.expect("]", "',' or ']'")
        try:
            schema_default.check_list(values, plain)
        except ValueError as error:
            lexer.fail(str(error), place)
        return values

    def parse_constant(self, plain: SchemaType, real: SchemaType) -> object:
        """Parse one constant. Its type is barely checked: PyTorch accepts ``int x="text"``."""
        lexer = self.lexer
        token = lexer.current
        if token in _CONSTANTS:
            lexer.place += 1
            return _CONSTANTS[token]
        if is_string(token):
            return lexer.take_as(schema_default.string_of, token)
        if is_identifier(token):
            return lexer.take_as(lambda name: schema_default.constant_of(name, real), token)
        sign = "-" if lexer.accept("-") else ""
        token = lexer.current
        if not is_number(token):
            lexer.fail("a number" if sign else "a default value")
        return lexer.take_as(lambda text: schema_default.number_of(text, plain), sign + token)


_CONSTANTS = {"True": True, "False": False, "None": None}


def _find_misplaced(arguments: list[Argument], is_vararg: bool) -> tuple[int, str] | None:
    """Return the first misplaced argument and what was expected, or None."""
    seen_default = False
    for index, argument in enumerate(arguments):
        if argument.has_default:
            seen_default = True
            if is_vararg:
                return index, "no defaults in a schema with '...'"
        # Lists without a default may follow, as in old schemas, which broadcast them.
        elif seen_default and not argument.kwarg_only and not isinstance(argument.type, ListType):
            return index, "a default, since an argument before this one has one"
    return None


def _list_size(token: str) -> int:
    size = schema_default.integer_of(token)
    if size > MAX_LIST_SIZE:
        raise ValueError(f"a size of at most {MAX_LIST_SIZE}")
    return size


def _device_of(token: str) -> str:
    if not is_string(token):
        raise ValueError("a quoted device, such as 'cpu' or 'cuda:1'")
    return schema_default.check_device(schema_default.string_of(token))
