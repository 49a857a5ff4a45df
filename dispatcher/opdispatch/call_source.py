"""The text of the functions that are generated for a schema; see ``compiled_call.py``.

For ``(Tensor x, int n=1) -> Tensor`` it is, but for the order of a few lines::

    def __call__(_op, /, x=_M, n=_M, *_extra, **_more):
        if _extra or _more:
            return _op.interpret_call(*_given([], [('x', x), ('n', n)], _extra, [], _more))
        try:
            _v1 = _d1 if n is _M else n         # and checked to be an int
            _b = key bits of x                  # KeyError, if it is no tensor
            # KeyError, if it is the first call of its kind
            _k = (
                _op._entry.calls if not _on or _local() is _DEFAULT
                else _op._entry.calls_in(_local())
            )[_b]
        except _errors:
            _k = None
        if _k is None:
            return _op.interpret_call(...)
        _r = _k(x, _v1)
        if _r is a tensor: return _r
        return _op._entry.signature.check_result(_r)
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.argument_conversion import converter_of
from opdispatch.arrays import PLAIN_KEY_BITS, key_bits_of
from opdispatch.basic_conversion import USUAL_DTYPES
from opdispatch.function_schema import Argument, FunctionSchema
from opdispatch.generator import key_bits_of_generator
from opdispatch.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE, SWITCHED_ON
from opdispatch.schema_type import (
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
from opdispatch.tensor import Tensor

_INTS = (INT, SYM_INT)

# Python classes whose values need no conversion to these types: nothing but the class is asked.
_EXACT = {BOOL: "bool", FLOAT: "float", STR: "str"}

# True of what is known to be a tensor, and its key bits (or KeyError): the commonest types first.
_IS_TENSOR = "(_t := _type({0})) is _ndarray or _t is _Tensor or _t in _PLAIN"
_IS_USUAL_TENSOR = "((_t := _type({0})) is _ndarray or _t is _Tensor)"
_BITS = "_CPU if (_t := _type({0})) is _ndarray else {0}.key_bits if _t is _Tensor else _PLAIN[_t]"

# True of what needs no conversion to an int: Python compares small numbers faster, and the
# converter knows of the larger ones. And what is no such element of a list.
_IS_SMALL = "_type({0}) is _int and -0x3FFFFFFF <= {0} <= 0x3FFFFFFF"
_IS_NOT_SMALL = "_type({0}) is not _int or {0} > 0x3FFFFFFF or {0} < -0x3FFFFFFF"


class _Missing:
    """Stands for an argument that was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


MISSING: Any = _Missing()


class CallSource:
    """Writes the source of one schema's entry points. All names of ours start with ``_``.

    ``globals`` is what the generated code refers to.
    """

    def __init__(self, schema: FunctionSchema) -> None:
        self.schema = schema
        self.globals: dict[str, Any] = {
            "_M": MISSING,
            "_PLAIN": PLAIN_KEY_BITS,
            "_CPU": PLAIN_KEY_BITS[np.ndarray],
            "_ndarray": np.ndarray,
            "_Tensor": Tensor,
            "_bits_of": key_bits_of,
            "_bits_of_all": _key_bits_of_all,
            "_bits_of_generator": key_bits_of_generator,
            "_on": SWITCHED_ON,
            "_local": LOCAL_STATE.get,
            "_DEFAULT": DEFAULT_STATE,
            "_given": _given,
            # A schema may call an argument "type": built-in names get names of ours.
            **{f"_{cls.__name__}": cls for cls in (type, bool, int, float, str, list, tuple)},
            "_len": len,
            "_dtypes": USUAL_DTYPES,
            "_errors": (KeyError, TypeError),
        }
        # What an argument is called in the generated code: its parameter, and its value. They
        # differ where there is a default or a conversion, since the twin is given what the
        # caller gave. A schema may use Python's keywords, our names, or one name twice: such an
        # argument gets a name of ours, by which no caller can give it. See `_parameters`.
        self.names: list[str] = []
        self.values: list[str] = []
        known = [argument.name for argument in schema.arguments]
        for place, argument in enumerate(schema.arguments):
            usable = (
                not keyword.iskeyword(argument.name)
                and not argument.name.startswith("_")
                and known.count(argument.name) == 1
                and argument.name.isidentifier()
            )
            self.names.append(argument.name if usable else f"_a{place}")
            as_given = _is_one_tensor(argument.type) and not argument.has_default
            self.values.append(self.names[place] if as_given else f"_v{place}")
            if argument.has_default:
                self.globals[f"_d{place}"] = argument.default
        named = list(zip(self.names, known, schema.arguments, strict=True))
        positional = [(name, original) for name, original, a in named if not a.kwarg_only]
        # Up to the last one that has a name of ours, parameters are given by position only. The
        # twin deals with a caller who gives them by name.
        ours = [place for place, (name, original) in enumerate(positional) if name != original]
        first = ours[-1] + 1 if ours else 0
        self.positional_only = [name for name, _ in positional[:first]]
        self.positional = [name for name, _ in positional[first:]]
        self.keyword_only = [n for n, original, a in named if a.kwarg_only and n == original]

    def call(self, function: str) -> str:
        """``__call__``: the keys come from the arguments."""
        unusual = "_extra or _more"
        fallback = f"return _op.interpret_call(*{self._collected()})"
        return self._function(function, ["_op"], [], unusual, self._find_kernel(), fallback)

    def packet(self, function: str) -> str:
        """``__call__`` of a packet: of what its ``_only`` is when the call begins."""
        unusual = "_op is None or _extra or _more"
        fallback = f"return _packet._interpret_call(*{self._collected()})"
        first = ["_op = _packet._only"]  # once: another thread may set it to None
        return self._function(function, ["_packet"], first, unusual, self._find_kernel(), fallback)

    def packet_of_several(self, function: str) -> str:
        """``__call__`` of a packet whose ``_only`` is the overload for tensors, and takes no more.

        Parameters have no names here, since those of the other overloads may be others.
        """
        given = ", ".join(self.names)
        types = ", ".join(f"_type({name})" for name in self.names)
        are_tensors = " and ".join(_IS_USUAL_TENSOR.format(name) for name in self.names)
        # A conditional expression reads no more than it needs.
        kept = f"_packet._by_types.get(({types},))"
        choose = f"_packet._choose(({given},), {{}})"
        lines = [
            f"if _extra or _more or {self.names[-1]} is _M:",
            f"    return _packet._call_any([{given}], _extra, _more)",
            "_op = _packet._only",
            f"if _op is None or not ({are_tensors}): return ({kept} or {choose})({given})",
            "try:",
            *(f"    {line}" for line in self._find_kernel()),
            "except _errors:",
            "    _k = None",
            f"if _k is None: return {choose}({given})",
            f"_r = _k({given})",
            *self._returns(),
        ]
        parameters = "".join(f", {name}=_M" for name in self.names)
        head = f"def {function}(_packet{parameters}, /, *_extra, **_more):"
        return "\n    ".join([head, *lines]) + "\n"

    def redispatch(self, function: str) -> str:
        """``redispatch``: the keys are given; local sets do not count."""
        body = [
            *(line for i, a in enumerate(self.schema.arguments) for line in self._is_tensor(i, a)),
            "_k = _op._entry.redispatches[_keys.bits]",
        ]
        fallback = f"return _op.interpret_redispatch(_keys, *{self._collected()})"
        unusual = "_extra or _more or _on and _local().trace is not None"
        own = ["_op", "_keys"]
        return self._function(function, own, [], unusual, body, fallback, reads_bits=False)

    def redispatch_converted(self, function: str) -> str:
        """``redispatch_converted``: arguments are all there, and as they should be.

        A list is a new one again: a kernel may change its own, and the caller may keep this one.
        """
        values = list(map(_fresh, self.names, self.schema.arguments))
        lines = [
            f"def {function}({self._parameters(['_op', '_keys'])}):",
            "    _k = _op._entry.redispatches.get(_keys.bits)",
            "    if _k is None or _extra or _more or _on and _local().trace is not None:",
            f"        return _op.interpret_redispatch(_keys, *{self._collected()})",
            f"    _r = _k({self._arguments(values)})",
            *(f"    {line}" for line in self._returns()),
        ]
        return "\n".join(lines) + "\n"

    def link(self, function: str) -> str:
        """``_link``: ``redispatch_converted`` for a kernel that has been found.

        Nothing, if a keyword-only argument has a name that cannot be a parameter's.
        """
        if len(self.keyword_only) < sum(a.kwarg_only for a in self.schema.arguments):
            return ""
        positional = [*self.positional_only, *self.positional]
        star = ["*"] if self.keyword_only else []
        values = list(map(_fresh, self.names, self.schema.arguments))
        lines = [
            f"def {function}(_op, _keys, _k):",
            "    _check = _op.call_signature.check_result",
            f"    def _call({', '.join([*positional, *star, *self.keyword_only])}):",
            f"        _r = _k({self._arguments(values)})",
            *(f"        {line}" for line in self._returns("_check")),
            "    _call.kernel = _k",
            "    return _call",
        ]
        return "\n".join(lines) + "\n"

    def boxed(self) -> str:
        """``redispatch_boxed``: a stack is taken as it is, and its returns are checked."""
        lines = [
            "def redispatch_boxed(_op, keys, stack):",
            "    _k = _op._entry.boxed_redispatches.get(keys.bits)",
            "    if _k is None or _on and _local().trace is not None:",
            "        return _op.interpret_redispatch_boxed(keys, stack)",
            "    _k(stack)",
        ]
        returns = self.schema.returns
        if len(returns) == 1 and returns[0].type is TENSOR:
            one = _IS_TENSOR.format("stack[0]")
            lines.append(f"    if len(stack) == 1 and ({one}): return")
        lines.append("    stack[:] = _op._entry.signature.check_returns(stack)")
        return "\n".join(lines) + "\n"

    def _function(
        self,
        function: str,
        own: list[str],
        first: list[str],
        unusual: str,
        body: list[str],
        fallback: str,
        reads_bits: bool = True,
    ) -> str:
        values = [
            line
            for place, argument in enumerate(self.schema.arguments)
            for line in self._value(place, argument, reads_bits)
        ]
        lines = [
            f"def {function}({self._parameters(own)}):",
            *(f"    {line}" for line in first),
            f"    if {unusual}: {fallback}",
            "    try:",
            *(f"        {line}" for line in (*values, *body)),
            "    except _errors:",
            "        _k = None",
            # Outside the handler, or the twin's errors would drag this one along.
            "    if _k is None:",
            f"        {fallback}",
            f"    _r = _k({self._arguments(self.values)})",
            *(f"    {line}" for line in self._returns()),
        ]
        return "\n".join(lines) + "\n"

    def _parameters(self, own: list[str]) -> str:
        """The parameters. What is given by a name that is none of theirs is in ``_more``.

        An argument given both by position and by name is refused by Python itself, with a
        TypeError: telling it apart here would cost every call by name half its time again.
        """
        defaulted = [f"{name}=_M" for name in self.positional]
        before = [*own, *(f"{name}=_M" for name in self.positional_only), "/"]
        after = [f"{name}=_M" for name in self.keyword_only]
        return ", ".join([*before, *defaulted, "*_extra", *after, "**_more"])

    def _value(self, place: int, argument: Argument, reads_bits: bool) -> list[str]:
        """Lines that set an argument's value to what was given, or to the default."""
        name, value = self.names[place], self.values[place]
        check = self._check(place, argument, reads_bits)
        default = f"_d{place}" if argument.has_default else "_M"
        if argument.kwarg_only and name != argument.name:
            return [f"{value} = {default}", *check]
        if not argument.has_default:
            return check if value == name else [f"{value} = {name}", *check]
        if not _is_converted(argument):
            return [f"{value} = {default} if {name} is _M else {name}", *check]
        given = [f"{value} = {name}", *check]
        return [f"if {name} is _M: {value} = {default}", "else:", *(f"    {g}" for g in given)]

    def _find_kernel(self) -> list[str]:
        """Lines that set ``_k`` to the kernel for the keys of the arguments."""
        dispatching = [(i, a) for i, a in enumerate(self.schema.arguments) if a.type.dispatches]
        lines = ["_b = 0"]
        if dispatching and _is_or_has_tensors(dispatching[0][1].type):  # the first needs no union
            (place, first), *dispatching = dispatching
            lines = self._first_bits(place, first)
        lines += [line for i, argument in dispatching for line in self._bits(i, argument)]
        for place, argument in enumerate(self.schema.arguments):
            if is_generator(argument.type):
                generator = self.values[place]
                lines.append(f"if {generator} is not None: _b |= _bits_of_generator({generator})")
        usual = "_op._entry.calls if not _on or _local() is _DEFAULT"
        return [*lines, f"_k = ({usual} else _op._entry.calls_in(_local()))[_b]"]

    def _first_bits(self, place: int, argument: Argument) -> list[str]:
        """``_bits`` of the first argument that has any, a tensor or a list."""
        name = self.values[place]
        if argument.type is TENSOR:
            return [f"_b = {_BITS.format(name)}"]
        return [
            f"for _e in {name}:",
            "    if _type(_e) is not _ndarray:",
            f"        _b = _bits_of_all({name}); break",
            f"else: _b = _CPU if {name} else 0",
        ]

    def _bits(self, place: int, argument: Argument) -> list[str]:
        """Lines that add the key bits of a tensor argument to ``_b``, or raise KeyError."""
        name, kind = self.values[place], argument.type
        # Mostly the tensors of a call have the same bits, and a union makes a new int.
        union = "if _c is not _b: _b |= _c"
        add = [f"_c = {_BITS.format(name)}", union]
        if kind is TENSOR:
            return add
        if isinstance(kind, OptionalType):
            return [f"if {name} is not None:", *(f"    {line}" for line in add)]
        assert isinstance(kind, ListType)
        if isinstance(kind.element, OptionalType):
            return [f"for _e in {name}:", "    if _e is not None: _b |= _bits_of(_e)"]
        return [f"_b |= _bits_of_all({name})"]

    def _is_tensor(self, place: int, argument: Argument) -> list[str]:
        """Lines that raise KeyError if a tensor argument is none; for when no bits are read."""
        name, kind = self.values[place], argument.type
        if not _is_one_tensor(kind):
            return []
        unless = "" if kind is TENSOR else f"{name} is not None and "
        return [f"if {unless}(_t := _type({name})) is not _Tensor: _PLAIN[_t]"]

    def _check(self, place: int, argument: Argument, reads_bits: bool) -> list[str]:
        """Lines that convert an argument, or raise TypeError or KeyError.

        What is in a list of tensors needs no look where the bits of each are read: see _bits.
        """
        name, kind = self.values[place], argument.type
        if _is_one_tensor(kind):
            return []  # see _bits and _is_tensor
        convert = f"{name} = _c{place}({name})"
        self.globals[f"_c{place}"] = converter_of(kind)
        if not argument.has_default and _accepts_anything(converter_of(kind)):
            return [f"if {name} is _M: raise _errors[0]", convert]
        if reads_bits and kind.dispatches:
            given = f"_type({name}) is _list or _type({name}) is _tuple"
            return [f"{name} = [*{name}] if {given} else _c{place}({name})"]
        of = _without_none(kind)
        otherwise = convert if of is kind else f"if {name} is not None: {convert}"
        if of is SCALAR:
            unusual = f"_type({name}) is not _float and ({_IS_NOT_SMALL.format(name)})"
            return [f"if {unusual}:", f"    {otherwise}"]
        if of is SCALAR_TYPE:
            known = f"{name} = _t if (_t := _dtypes.get({name})) is not None else _c{place}({name})"
            return [known if of is kind else f"if {name} is not None: {known}"]
        if of in _EXACT:
            return [f"if _type({name}) is not _{_EXACT[of]}:", f"    {otherwise}"]
        if of in _INTS:
            return [f"if {_IS_NOT_SMALL.format(name)}:", f"    {otherwise}"]
        if isinstance(of, ListType) and _without_none(of.element) in _INTS:
            unless = "" if of.element in _INTS else "_e is not None and "
            lines = [
                f"if (_t := _type({name})) is _tuple or _t is _list:",
                f"    for _e in {name}:",
                f"        if {unless}({_IS_NOT_SMALL.format('_e')}):",
                f"            {convert}; break",
                f"    else: {name} = [*{name}]",
            ]
            if of.size and of.element in _INTS:
                lines.append(f"elif {_IS_SMALL.format(name)}: {name} = [{name}] * {of.size}")
            return [*lines, "else:", f"    {otherwise}"]
        return [otherwise]

    def _arguments(self, values: Sequence[str]) -> str:
        """The kernel's arguments: its own names for the keyword-only ones, which are fixed."""
        places = list(zip(self.names, values, self.schema.arguments, strict=True))
        parts = [value for _, value, argument in places if not argument.kwarg_only]
        named = [(n, v, a) for n, v, a in places if a.kwarg_only]
        if all(name == argument.name for name, _, argument in named):
            parts += [f"{name}={value}" for name, value, _ in named]
        else:
            parts.append("**{" + ", ".join(f"{a.name!r}: {v}" for _, v, a in named) + "}")
        return ", ".join(parts)

    def _collected(self) -> str:
        """The arguments, for the twin: a pair of args and kwargs."""
        # A keyword-only argument with a name of ours was not given, or is in `_more`.
        parts = [
            f"[{', '.join(self.positional_only)}]",
            _pairs(self.positional),
            "_extra",
            _pairs(self.keyword_only),
            "_more",
        ]
        return f"_given({', '.join(parts)})"

    # The entry's, since the operator may be gone by the time its kernel returns.
    def _returns(self, check_result: str = "_op._entry.signature.check_result") -> list[str]:
        returns = self.schema.returns
        check = f"return {check_result}(_r)"
        if not returns:
            return ["if _r is None: return None", check]
        if len(returns) == 1 and returns[0].type is TENSOR:
            return [f"if {_IS_TENSOR.format('_r')}: return _r", check]
        is_list = len(returns) == 1 and returns[0].type == ListType(TENSOR)
        if is_list or (returns and all(each.type is TENSOR for each in returns)):
            new = "[*_r]" if is_list else "_r"  # the kernel may keep its list
            usual = (
                "_type(_r) is _list"
                if is_list
                else f"_type(_r) is _tuple and _len(_r) == {len(returns)}"
            )
            return [
                f"if {usual}:",
                "    for _e in _r:",
                f"        if not {_IS_USUAL_TENSOR.format('_e')}: break",
                f"    else: return {new}",
                check,
            ]
        return [check]


def _pairs(names: list[str]) -> str:
    """Source of a list of names with their values."""
    return "[" + ", ".join(f"({name!r}, {name})" for name in names) + "]"


def _is_one_tensor(kind: SchemaType) -> bool:
    """Whether it is ``Tensor`` or ``Tensor?``."""
    return kind.dispatches and not isinstance(kind, ListType)


def _is_or_has_tensors(kind: SchemaType) -> bool:
    """Whether it is ``Tensor`` or ``Tensor[]``, of which none may be missing."""
    return kind is TENSOR or (isinstance(kind, ListType) and kind.element is TENSOR)


def _without_none(kind: SchemaType) -> SchemaType:
    return kind.element if isinstance(kind, OptionalType) else kind


def _is_converted(argument: Argument) -> bool:
    """Whether the default can be passed to kernels as it is: a new list is due to each call."""
    try:
        converted = converter_of(argument.type)(argument.default)
    except TypeError:  # PyTorch's schemas may have defaults of the wrong type
        return False
    return converted is argument.default and isinstance(converted, int | float | str | None)


def _fresh(name: str, argument: Argument) -> str:
    """What is called that, or a new list if it is one."""
    match argument.type:
        case ListType():
            return f"{name}[:]"
        case OptionalType(ListType()):
            return f"None if {name} is None else {name}[:]"
    return name


def _accepts_anything(convert: Callable[[Any], Any]) -> bool:
    """Whether a converter would take even the stand-in for an argument that was not given."""
    try:
        convert(MISSING)
    except TypeError:
        return False
    return True


def _key_bits_of_all(values: Sequence[Any]) -> int:
    """The key bits of a list of tensors. Raises TypeError if one is none."""
    bits = 0
    for value in values:
        kind = type(value)
        its = value.key_bits if kind is Tensor else PLAIN_KEY_BITS.get(kind) or key_bits_of(value)
        if its is not bits:  # a union makes a new int
            bits = bits | its if bits else its
    return bits


def _given(
    positional_only: list[Any],
    positional: list[tuple[str, Any]],
    extra: tuple[Any, ...],
    keyword_only: list[tuple[str, Any]],
    more: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as the twin takes them, without those that were not given.

    All that can go by name does; see Note [Compiled for one schema]. With ``extra`` arguments,
    which come after all others, that is not possible, and not needed: the call is refused.
    """
    args = [value for value in positional_only if value is not MISSING]
    if extra:
        args += [*(value for _, value in positional), *extra]
        positional = []
    named = {name: value for name, value in [*positional, *keyword_only] if value is not MISSING}
    return args, named | more
