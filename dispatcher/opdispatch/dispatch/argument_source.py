"""The lines for one argument in the source that ``call_source.py`` generates.

They set a variable to the given value or the default, convert it, and read its key bits. If they
raise KeyError or TypeError, the interpreter path takes the call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays import CPU_BITS, PLAIN_KEY_BITS, key_bits_of
from opdispatch.boxing.argument_conversion import converter_of
from opdispatch.boxing.basic_conversion import usual_dtypes
from opdispatch.dispatch.operator_state import NEEDS_GRADIENT, TENSOR_BITS
from opdispatch.keys.dispatch_key_set import AUTOGRAD_BITS
from opdispatch.schema.function_schema import Argument
from opdispatch.schema.types import (
    BOOL,
    FLOAT,
    INT,
    SCALAR,
    SCALAR_TYPE,
    STR,
    SYM_INT,
    TENSOR,
    ListType,
    OptionalType,
    SchemaType,
    is_generator,
)
from opdispatch.tensors.generator import key_bits_of_generator
from opdispatch.tensors.tensor import Tensor

_INTS = (INT, SYM_INT)
_OPTIONAL_TENSORS = ListType(OptionalType(TENSOR))

# Python classes whose values need no conversion to these types: only the class is checked.
_EXACT = {BOOL: "bool", FLOAT: "float", STR: "str"}

IS_TENSOR = "(_t := _type({0})) is _ndarray or _t is _Tensor or _t in _PLAIN"
"""True for values known to be tensors: the most frequent types first."""
IS_USUAL_TENSOR = "((_t := _type({0})) is _ndarray or _t is _Tensor)"
_NEEDS_GRADIENT = "if _t is _Tensor and {0}.requires_grad_flag: _b |= _GRAD"
_BITS = "_CPU if (_t := _type({0})) is _ndarray else {0}.key_bits if _t is _Tensor else _PLAIN[_t]"

# True for values that need no conversion to an int. Python compares small ints faster, and the
# converter handles larger ones. The second expression is for values that are no such list element.
_IS_SMALL = "_type({0}) is _int and {0} <= 0x3FFFFFFF and {0} >= -0x3FFFFFFF"
_IS_NOT_SMALL = "_type({0}) is not _int or {0} > 0x3FFFFFFF or {0} < -0x3FFFFFFF"


class _Missing:
    """The placeholder for an argument that was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()


def _key_bits_of_all(values: Sequence[Any]) -> int:
    """Return the key bits of a list of tensors, any of which may be None.

    They include ``NEEDS_GRADIENT`` if one requires gradients. Raises TypeError for any other value.
    """
    bits = 0
    for value in values:
        if value is None:
            continue
        kind = type(value)
        its = value.key_bits if kind is Tensor else PLAIN_KEY_BITS.get(kind) or key_bits_of(value)
        if its is not bits:  # a union creates a new int
            bits = bits | its if bits else its
        # As ``Signature.needs_gradient``.
        if isinstance(value, Tensor) and its & AUTOGRAD_BITS and value.requires_grad_flag:
            bits |= NEEDS_GRADIENT
    return bits


@functools.cache
def argument_globals() -> dict[str, Any]:
    """Return the globals that the lines for any argument use."""
    return {
        "_M": MISSING,
        "_PLAIN": PLAIN_KEY_BITS,
        "_CPU": CPU_BITS,
        "_ndarray": np.ndarray,
        "_Tensor": Tensor,
        "_BITS": TENSOR_BITS,
        "_GRAD": NEEDS_GRADIENT,
        "_bits_of_all": _key_bits_of_all,
        "_bits_of_generator": key_bits_of_generator,
        # A schema may name an argument "type", so built-in names are aliased.
        **{f"_{cls.__name__}": cls for cls in (type, bool, int, float, str, list, tuple)},
        "_dtypes": usual_dtypes(),
        "_errors": (KeyError, TypeError),
    }


class ArgumentSource:
    """The lines for the argument at ``place`` of a schema, whose parameter is called ``name``."""

    def __init__(self, place: int, argument: Argument, name: str) -> None:
        self.place = place
        self.argument = argument
        self.name = name
        self.kind = argument.type
        # Parameter and value differ if there is a default or a conversion, since the interpreter
        # path needs what the caller gave.
        as_given = _is_one_tensor(self.kind) and not argument.has_default
        self.value = name if as_given else f"_v{place}"
        self.globals: dict[str, Any] = {}
        """Globals of its lines, in addition to ``argument_globals``."""
        self._default = "_M"
        if argument.has_default:
            self._default = f"_d{place}"
            self.globals[self._default] = argument.default
        self._default_list = _list_of_ints(argument) if argument.has_default else ""
        self._converter = ""
        if not _is_one_tensor(self.kind):
            self._converter = f"_c{place}"
            self.globals[self._converter] = converter_of(self.kind)

    def set_value(self, reads_bits: bool) -> list[str]:
        """Set its value to the given one, converted, or to the default."""
        name, value, argument = self.name, self.value, self.argument
        convert = self._convert(reads_bits)
        if argument.kwarg_only and name != argument.name:
            return [f"{value} = {self._default}", *convert]
        if not argument.has_default:
            return convert if value == name else [f"{value} = {name}", *convert]
        if not (self._default_list or _is_converted(argument)):
            return [f"{value} = {self._default} if {name} is _M else {name}", *convert]
        given = [f"{value} = {name}", *convert]
        otherwise = ["else:", *(f"    {line}" for line in given)]
        return [f"if {name} is _M: {value} = {self._default_list or self._default}", *otherwise]

    def convert(self, converts: bool) -> list[str]:
        """Set its value to the given one, converted if ``converts``; it was given."""
        same = [] if self.value == self.name else [f"{self.value} = {self.name}"]
        return [*same, *(self._convert(reads_bits=True) if converts else ())]

    def is_sure(self) -> str:
        """Return an expression for whether the given arguments are accepted unconverted.

        "" if none can tell.
        """
        test = is_taken(self.kind, self.name)
        if not self.argument.has_default:
            return test
        is_usual = test and _is_converted(self.argument)
        return f"({self.name} is _M or {test})" if is_usual else ""

    def take(self) -> list[str]:
        """Set its value to the given one, or to the default, where that ``is_sure``."""
        if self.value == self.name:
            return []
        has_default = self.argument.has_default
        unless = f"{self._default} if {self.name} is _M else " if has_default else ""
        return [f"{self.value} = {unless}{self.name}"]

    def set_bits(self) -> list[str]:
        """Set ``_b`` to its key bits, for the first argument that has any.

        They include ``NEEDS_GRADIENT`` if it requires gradients.
        """
        if self.kind is TENSOR:
            return [f"_b = {_BITS.format(self.value)}", _NEEDS_GRADIENT.format(self.value)]
        if isinstance(self.kind, ListType):
            return [f"_b = _bits_of_all({self.value})"]
        return ["_b = 0", *self.add_bits()]

    def add_bits(self) -> list[str]:
        """Add its key bits to ``_b``."""
        name, kind = self.value, self.kind
        if isinstance(kind, ListType):
            return [f"_b |= _bits_of_all({name})"]
        # Usually the tensors of a call have the same bits, and a union creates a new int.
        add = [f"_c = {_BITS.format(name)}", "if _c is not _b: _b |= _c"]
        add.append(_NEEDS_GRADIENT.format(name))
        if kind is TENSOR:
            return add
        return [f"if {name} is not None:", *(f"    {line}" for line in add)]

    @property
    def is_usual(self) -> bool:
        """Whether ``are_arrays`` and ``are_tensors`` can classify it."""
        return self.kind in (TENSOR, OptionalType(TENSOR), ListType(TENSOR), _OPTIONAL_TENSORS)

    @property
    def may_be_nothing(self) -> bool:
        """Whether it may contain no tensor, and then does not affect the choice of a kernel."""
        return self.kind in (OptionalType(TENSOR), _OPTIONAL_TENSORS)

    def sort_list(self) -> list[str]:
        """Return lines that classify a list's items, for ``are_arrays`` and ``are_tensors``."""
        if not isinstance(self.kind, ListType):
            return []
        name, found, needs = self.value, f"_l{self.place}", f"_g{self.place}"
        return [
            f"{needs} = None",
            f"if ({found} := _type({name}[0]) if {name} else None) is _ndarray:",
            f"    for _e in {name}:",
            f"        if _type(_e) is not _ndarray: {found} = None; break",
            f"elif {found} is _Tensor:",
            f"    for _e in {name}:",
            "        if _type(_e) is not _Tensor or _e.key_bits is not _BITS:",
            f"            {found} = None; break",
            f"        if _e.requires_grad_flag: {needs} = True",
        ]

    def are_arrays(self, is_first: bool) -> str:
        """Return an expression for whether it is a NumPy array, a list of them, or nothing.

        ``_t`` must be the type of the first such argument.
        """
        if isinstance(self.kind, ListType):
            return self._are_all("_ndarray")
        test = f"{'_t' if is_first else f'_type({self.value})'} is _ndarray"
        return test if self.kind is TENSOR else f"({self.value} is None or {test})"

    def are_tensors(self, is_first: bool) -> str:
        """Return an expression for whether it is a plain CPU tensor, a list of them, or nothing.

        ``_t`` must be the type of the first such argument.
        """
        name = self.value
        if isinstance(self.kind, ListType):
            return self._are_all("_Tensor")
        kind = "_t" if is_first else f"_type({name})"
        test = f"{kind} is _Tensor and {name}.key_bits is _BITS"
        return test if self.kind is TENSOR else f"({name} is None or {test})"

    def _are_all(self, kind: str) -> str:
        test = f"_l{self.place} is {kind}"
        return f"(not {self.value} or {test})" if self.may_be_nothing else test

    def needs_gradient(self) -> str:
        """Return an expression for whether it requires gradients, where ``are_tensors`` is true."""
        name = self.value
        if isinstance(self.kind, ListType):
            return f"_g{self.place}"
        test = f"{name}.requires_grad_flag"
        return test if self.kind is TENSOR else f"{name} is not None and {test}"

    def add_bits_of_generator(self) -> list[str]:
        """Add the key bits of a generator, if it is one."""
        if not is_generator(self.kind):
            return []
        return [f"if {self.value} is not None: _b |= _bits_of_generator({self.value})"]

    def look_at_type(self) -> list[str]:
        """Raise KeyError if a value should be a tensor and is not, where key bits are not read."""
        if not _is_one_tensor(self.kind):
            return []
        unless = "" if self.kind is TENSOR else f"{self.value} is not None and "
        return [f"if {unless}(_t := _type({self.value})) is not _Tensor: _PLAIN[_t]"]

    def fresh(self) -> str:
        """Return an expression for the value of its parameter; a list is copied."""
        match self.kind:
            case ListType():
                return f"[*{self.name}]"  # faster than a slice
            case OptionalType(ListType()):
                return f"None if {self.name} is None else [*{self.name}]"
        return self.name

    def _convert(self, reads_bits: bool) -> list[str]:
        """Convert its value.

        The items of a list of tensors need no check if the key bits of each are read.
        """
        name, kind = self.value, self.kind
        if _is_one_tensor(kind):
            return []
        converted = f"{self._converter}({name})"
        convert = f"{name} = {converted}"
        if not self.argument.has_default and _accepts_anything(converter_of(kind)):
            return [f"if {name} is _M: raise _errors[0]", convert]
        if reads_bits and kind.dispatches:
            copied = f"{name}.copy() if (_t := _type({name})) is _list else"
            return [f"{name} = {copied} [*{name}] if _t is _tuple else {converted}"]
        of = _without_none(kind)
        unless_none = "" if of is kind else f"if {name} is not None: "
        if of is SCALAR_TYPE:
            known = f"_t if (_t := _dtypes.get({name})) is not None else {converted}"
            return [f"{unless_none}{name} = {known}"]
        unusual = ""
        if of is SCALAR:
            unusual = f"_type({name}) is not _float and ({_IS_NOT_SMALL.format(name)})"
        elif of is FLOAT:  # such a small int is exactly this float
            small = f"_t is _int and -0x3FFFFFFF <= {name} <= 0x3FFFFFFF"
            return [
                f"if (_t := _type({name})) is not _float:",
                f"    if {small}: {name} += 0.0",
                f"    else: {name} = {converted}",
            ]
        elif of in _EXACT:
            unusual = f"_type({name}) is not _{_EXACT[of]}"
        elif of in _INTS:
            unusual = _IS_NOT_SMALL.format(name)
        if unusual:
            return [f"if {unusual}:", f"    {unless_none}{convert}"]
        if isinstance(of, ListType) and _without_none(of.element) in _INTS:
            return self._convert_ints(of, convert, unless_none)
        return [f"{unless_none}{convert}"]

    def _convert_ints(self, kind: ListType, convert: str, unless_none: str) -> list[str]:
        name, may_be_none = self.value, kind.element not in _INTS
        unless = "_e is not None and " if may_be_none else ""
        lines = [
            f"if (_t := _type({name})) is _tuple or _t is _list:",
            f"    for _e in {name}:",
            f"        if {unless}({_IS_NOT_SMALL.format('_e')}):",
            f"            {convert}; break",
            f"    else: {name} = [*{name}]",
        ]
        if kind.size and not may_be_none:
            items = ", ".join([name] * kind.size) if kind.size <= 4 else f"*[{name}] * {kind.size}"
            lines.append(f"elif {_IS_SMALL.format(name)}: {name} = [{items}]")
        return [*lines, "else:", f"    {unless_none}{convert}"]


def _is_one_tensor(kind: SchemaType) -> bool:
    """Return whether the type is ``Tensor`` or ``Tensor?``."""
    return kind.dispatches and not isinstance(kind, ListType)


def is_taken(kind: SchemaType, name: str) -> str:
    """Return an expression that is true only for values that the converter returns unchanged."""
    if isinstance(kind, OptionalType):
        test = is_taken(kind.element, name)
        return test and f"({name} is None or {test})"
    if kind is TENSOR:
        return IS_USUAL_TENSOR.format(name)
    if kind is SCALAR:
        return f"(_type({name}) is _float or {_IS_SMALL.format(name)})"
    if kind in _INTS:
        return f"({_IS_SMALL.format(name)})"
    return f"_type({name}) is _{_EXACT[kind]}" if kind in _EXACT else ""


def _without_none(kind: SchemaType) -> SchemaType:
    return kind.element if isinstance(kind, OptionalType) else kind


def _is_converted(argument: Argument) -> bool:
    """Return whether the default can be passed to kernels unchanged: lists must be copied."""
    try:
        converted = converter_of(argument.type)(argument.default)
    except TypeError:  # PyTorch's schemas may have defaults of the wrong type
        return False
    return converted is argument.default and isinstance(converted, int | float | str | None)


def _list_of_ints(argument: Argument) -> str:
    """Return the source of the new list of ints that kernels get for a default.

    "" if it is none.
    """
    try:
        converted = converter_of(argument.type)(argument.default)
    except TypeError:
        return ""
    is_one = type(converted) is list and all(type(each) is int for each in converted)
    return str(converted) if is_one else ""


def _accepts_anything(convert: Callable[[Any], Any]) -> bool:
    """Return whether a converter would accept even the placeholder for a missing argument."""
    try:
        convert(MISSING)
    except TypeError:
        return False
    return True
