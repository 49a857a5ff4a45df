"""The short way through a call, generated for each schema.

The counterpart of the C++ templates around ``Dispatcher::call``. A handle's class gets a
``__call__`` with the schema's own parameters, which reads the key bits of the tensors, finds the
kernel that a call with these bits led to before, and calls it. Whenever anything is out of
the ordinary (a first call, a local include or exclude set, a trace, a missing, surplus or
unusual argument), it hands over to the readable twin, ``OperatorHandle.interpret_call``, which
gives the same answer or the error. ``OPDISPATCH_COMPILE=0`` leaves everything to the twin.

``redispatch`` and ``redispatch_boxed`` have compiled forms of the same kind, and so has the call
of a packet that has one overload: it is the call of the handle, in one function.
"""

from __future__ import annotations

import keyword
import linecache
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from opdispatch.argument_conversion import converter_of
from opdispatch.arrays import PLAIN_KEY_BITS, key_bits_of
from opdispatch.function_schema import Argument, FunctionSchema
from opdispatch.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.operator_handle import OperatorHandle
from opdispatch.schema_type import (
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
from opdispatch.tensor import Tensor

COMPILE = os.environ.get("OPDISPATCH_COMPILE", "1") != "0"

# The types whose Python class alone says that a value needs no conversion.
_EXACT = {BOOL: "bool", FLOAT: "float", STR: "str"}

# True of what is known to be a tensor, the commonest types first.
_IS_TENSOR = "(_t := _type({0})) is _ndarray or _t is _Tensor or _t in _PLAIN"

# Handle classes by the text of their parameters and returns: operators of one shape share one.
# Two threads may both compile a shape; either class will do.
_classes: WeakValueDictionary[str, type[OperatorHandle]] = WeakValueDictionary()


class _Missing:
    """Stands for an argument that was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


_MISSING = _Missing()

_packet_classes: WeakValueDictionary[tuple[type, str], type] = WeakValueDictionary()

P = TypeVar("P")


def packet_class_for(base: type[P], schema: FunctionSchema) -> type[P]:
    """``base`` with a ``__call__`` for packets that have one overload, of that schema.

    It calls the handle that is the packet's ``_only``. While that is None, and whenever it is in
    doubt, it hands over to the packet's ``_interpret_call(args, kwargs)``.
    """
    if not COMPILE:
        return base
    shape = _shape_of(schema)
    cls: type[P] | None = _packet_classes.get((base, shape))
    if cls is None:
        source = _CallSource(schema)
        cls = _subclass(base, f"<opdispatch packet {shape}>", source, [source.packet("__call__")])
        _packet_classes[base, shape] = cls
    return cls


def handle_class_for(schema: FunctionSchema | None) -> type[OperatorHandle]:
    """The class for handles of operators with that schema."""
    if schema is None or not COMPILE:
        return OperatorHandle
    shape = _shape_of(schema)
    cls = _classes.get(shape)
    if cls is None:
        cls = compile_handle_class(schema, shape)
        _classes[shape] = cls
    return cls


def compile_handle_class(schema: FunctionSchema, shape: str) -> type[OperatorHandle]:
    """Generates the subclass of OperatorHandle with the compiled entry points."""
    source = _CallSource(schema)
    functions = [source.call("__call__"), source.redispatch("redispatch"), source.boxed()]
    return _subclass(OperatorHandle, f"<opdispatch call {shape}>", source, functions)


def _shape_of(schema: FunctionSchema) -> str:
    return str(schema).removeprefix(str(schema.name))


def _subclass(base: type[P], filename: str, source: _CallSource, functions: list[str]) -> type[P]:
    """``base`` with the methods of that source."""
    text = "\n".join(functions)
    # Tracebacks can then show the generated lines.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    members: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), source.globals, members)
    cls = type(base.__name__, (base,), {"__slots__": (), **members})
    weakref.finalize(cls, linecache.cache.pop, filename, None)
    return cls


class _CallSource:
    """Writes the source of one schema's entry points. All names of ours start with ``_``."""

    def __init__(self, schema: FunctionSchema) -> None:
        self.schema = schema
        self.globals: dict[str, Any] = {
            "_M": _MISSING,
            "_PLAIN": PLAIN_KEY_BITS,
            "_ndarray": np.ndarray,
            "_Tensor": Tensor,
            "_bits_of": key_bits_of,
            "_local": LOCAL_STATE.get,
            "_DEFAULT": DEFAULT_STATE,
            "_given": _given,
            # A schema may call an argument "type": built-in names get names of ours.
            **{f"_{cls.__name__}": cls for cls in (type, bool, int, float, str)},
            "_errors": (KeyError, TypeError),
        }
        # What an argument is called in the generated code: its parameter, and its value. They
        # differ where there is a default or a conversion, since the twin is given what the
        # caller gave: it may find that the schema has changed. A schema may use Python's
        # keywords, our names, or one name twice: such an argument gets a name of ours, by which
        # no caller can give it. See `_parameters`.
        self.names: list[str] = []
        self.values: list[str] = []
        for place, argument in enumerate(schema.arguments):
            usable = (
                not keyword.iskeyword(argument.name)
                and not argument.name.startswith("_")
                and argument.name not in self.names
                and argument.name.isidentifier()
            )
            self.names.append(argument.name if usable else f"_a{place}")
            as_given = _is_one_tensor(argument.type) and not argument.has_default
            self.values.append(self.names[place] if as_given else f"_v{place}")
            if argument.has_default:
                self.globals[f"_d{place}"] = argument.default

    def call(self, function: str) -> str:
        """``__call__``: the keys come from the arguments."""
        unusual = "_extra or _more or _local() is not _DEFAULT"
        fallback = f"return _op.interpret_call(*{self._collected()})"
        return self._function(function, ["_op"], [], unusual, self._find_kernel(), fallback)

    def packet(self, function: str) -> str:
        """``__call__`` of a packet: of what its ``_only`` is when the call begins."""
        unusual = "_op is None or _extra or _more or _local() is not _DEFAULT"
        fallback = f"return _packet._interpret_call(*{self._collected()})"
        first = ["_op = _packet._only"]  # once: another thread may set it to None
        return self._function(function, ["_packet"], first, unusual, self._find_kernel(), fallback)

    def _find_kernel(self) -> list[str]:
        """Lines that set ``_k`` to the kernel for the keys of the arguments."""
        dispatching = [(i, a) for i, a in enumerate(self.schema.arguments) if a.type.dispatches]
        bits = ["_b = 0", *(line for i, a in dispatching for line in self._bits(i, a))]
        if dispatching and dispatching[0][1].type is TENSOR:  # the first needs no union
            bits[0:2] = [bits[1].replace("_b |= ", "_b = ")]
        return [*bits, "_k = _op._entry.calls[_b]"]

    def redispatch(self, function: str) -> str:
        """``redispatch``: the keys are given; local sets do not count."""
        body = [
            *(line for i, a in enumerate(self.schema.arguments) for line in self._is_tensor(i, a)),
            "_k = _op._entry.redispatches[_keys.bits]",
        ]
        fallback = f"return _op.interpret_redispatch(_keys, *{self._collected()})"
        unusual = "_extra or _more or _local().trace is not None"
        return self._function(function, ["_op", "_keys"], [], unusual, body, fallback)

    def boxed(self) -> str:
        """``redispatch_boxed``: a stack is taken as it is, and its returns are checked."""
        lines = [
            "def redispatch_boxed(_op, keys, stack):",
            "    _k = _op._entry.boxed_redispatches.get(keys.bits)",
            "    if _k is None or _local().trace is not None:",
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
    ) -> str:
        values = [line for i, a in enumerate(self.schema.arguments) for line in self._value(i, a)]
        positional = sum(not argument.kwarg_only for argument in self.schema.arguments)
        lines = [
            f"def {function}({self._parameters(own)}):",
            *(f"    {line}" for line in first),
            f"    _n = {positional}",
            f"    if {unusual}:",
            *(f"        {line}" for line in self._place_by_name()),
            f"        if {unusual}: {fallback}",
            "    try:",
            *(f"        {line}" for line in (*values, *body)),
            "    except _errors:",
            "        _k = None",
            # Outside the handler, or the twin's errors would drag this one along.
            "    if _k is None:",
            f"        {fallback}",
            f"    _r = _k({self._arguments()})",
            *(f"    {line}" for line in self._returns()),
        ]
        return "\n".join(lines) + "\n"

    def _parameters(self, own: list[str]) -> str:
        """The parameters: those given by position, then those given by name.

        The first are positional-only, or it would be Python that refuses, in its own words, an
        argument that is given twice. What is given by a name that is no parameter is in `_more`.
        """
        named = list(zip(self.names, self.schema.arguments, strict=True))
        positional = [f"{name}=_M" for name, argument in named if not argument.kwarg_only]
        keyword_only = [f"{n}=_M" for n, a in named if a.kwarg_only and n == a.name]
        return ", ".join([*own, *positional, "/", "*_extra", *keyword_only, "**_more"])

    def _value(self, place: int, argument: Argument) -> list[str]:
        """Lines that set an argument's value to what was given, or to the default."""
        name, value = self.names[place], self.values[place]
        check = self._check(place, argument)
        default = f"_d{place}" if argument.has_default else "_M"
        if argument.kwarg_only and name != argument.name:
            return [f"{value} = {default}", *check]
        if not argument.has_default:
            return check if value == name else [f"{value} = {name}", *check]
        if not _is_converted(argument):
            return [f"{value} = {default} if {name} is _M else {name}", *check]
        given = [f"{value} = {name}", *check]
        return [f"if {name} is _M: {value} = {default}", "else:", *(f"    {g}" for g in given)]

    def _place_by_name(self) -> list[str]:
        """Lines that put arguments in place which were given by name.

        From place ``_n`` on, positional arguments have come by name. What is left in ``_more`` is
        no argument, or was given twice: then the call is unusual still, and so the twin's.
        """
        known = [argument.name for argument in self.schema.arguments]
        positional = self.names[: sum(not a.kwarg_only for a in self.schema.arguments)]
        # A name that two arguments have stands for both: the twin knows.
        if not positional or len(set(known)) < len(known):
            return []
        first = " else ".join(f"{i} if {name} is _M" for i, name in enumerate(positional))
        return [
            "if _more:",
            f"    _n = {first} else {len(positional)}",
            *(
                f"    if _n <= {i}: {name} = _more.pop({known[i]!r}, _M)"
                for i, name in enumerate(positional)
            ),
        ]

    def _arguments(self) -> str:
        """The kernel's arguments: its own names for the keyword-only ones, which are fixed."""
        places = list(zip(self.names, self.values, self.schema.arguments, strict=True))
        parts = [value for _, value, argument in places if not argument.kwarg_only]
        named = [(n, v, a) for n, v, a in places if a.kwarg_only]
        if all(name == argument.name for name, _, argument in named):
            parts += [f"{name}={value}" for name, value, _ in named]
        else:
            parts.append("**{" + ", ".join(f"{a.name!r}: {v}" for _, v, a in named) + "}")
        return ", ".join(parts)

    def _collected(self) -> str:
        """The arguments as they were given, for the twin: a pair of args and kwargs."""
        pairs = list(zip(self.names, self.schema.arguments, strict=True))
        positional = ", ".join(f"({a.name!r}, {n})" for n, a in pairs if not a.kwarg_only)
        # A keyword-only argument with a name of ours was not given, or is in `_more`.
        keywords = ", ".join(f"({a.name!r}, {n})" for n, a in pairs if a.kwarg_only and n == a.name)
        return f"_given([{positional}], _n, _extra, [{keywords}], _more)"

    def _check(self, place: int, argument: Argument) -> list[str]:
        """Lines that convert an argument, or raise TypeError or KeyError."""
        name, kind = self.values[place], argument.type
        if _is_one_tensor(kind):
            return []  # see _bits and _is_tensor
        convert = f"{name} = _c{place}({name})"
        self.globals[f"_c{place}"] = converter_of(kind)
        if not argument.has_default and _accepts_anything(converter_of(kind)):
            return [f"if {name} is _M: raise _errors[0]", convert]
        if kind in _EXACT:
            return [f"if _type({name}) is not _{_EXACT[kind]}: {convert}"]
        if kind is INT or kind is SYM_INT:
            # Python compares small numbers faster; the converter knows of the larger ones.
            unusual = f"{name} > 0x3FFFFFFF or {name} < -0x3FFFFFFF"
            return [f"if _type({name}) is not _int or {unusual}: {convert}"]
        if isinstance(kind, OptionalType):
            return [f"if {name} is not None: {convert}"]
        return [convert]

    def _bits(self, place: int, argument: Argument) -> list[str]:
        """Lines that add the key bits of a tensor argument to ``_b``, or raise KeyError."""
        name, kind = self.values[place], argument.type
        one = "({0}.key_bits if (_t := _type({0})) is _Tensor else _PLAIN[_t])"
        if kind is TENSOR:
            return [f"_b |= {one.format(name)}"]
        if isinstance(kind, OptionalType):
            return [f"if {name} is not None: _b |= {one.format(name)}"]
        assert isinstance(kind, ListType)
        loop = f"for _t in {name}:"
        if isinstance(kind.element, OptionalType):
            return [loop, "    if _t is not None: _b |= _bits_of(_t)"]
        return [loop, "    _b |= _bits_of(_t)"]

    def _is_tensor(self, place: int, argument: Argument) -> list[str]:
        """Lines that raise KeyError if a tensor argument is none; for when no bits are read."""
        name, kind = self.values[place], argument.type
        one = f"if _type({name}) is not _Tensor: _PLAIN[_type({name})]"
        if kind is TENSOR:
            return [one]
        if isinstance(kind, OptionalType) and kind.dispatches:
            return [
                f"if {name} is not None and _type({name}) is not _Tensor: _PLAIN[_type({name})]"
            ]
        return []

    def _returns(self) -> list[str]:
        returns = self.schema.returns
        # The entry's, since the operator may be gone by the time its kernel returns.
        check = "return _op._entry.signature.check_result(_r)"
        if not returns:
            return ["if _r is None: return None", check]
        if len(returns) == 1 and returns[0].type is TENSOR:
            return [f"if {_IS_TENSOR.format('_r')}: return _r", check]
        return [check]


def _is_one_tensor(kind: SchemaType) -> bool:
    """Whether it is ``Tensor`` or ``Tensor?``."""
    return kind.dispatches and not isinstance(kind, ListType)


def _is_converted(argument: Argument) -> bool:
    """Whether the default can be passed to kernels as it is: a new list is due to each call."""
    try:
        converted = converter_of(argument.type)(argument.default)
    except TypeError:  # PyTorch's schemas may have defaults of the wrong type
        return False
    return converted is argument.default and isinstance(converted, int | float | str | None)


def _accepts_anything(convert: Callable[[Any], Any]) -> bool:
    """Whether a converter would take even the stand-in for an argument that was not given."""
    try:
        convert(_MISSING)
    except TypeError:
        return False
    return True


def _given(
    positional: list[tuple[str, Any]],
    by_position: int,
    extra: tuple[Any, ...],
    keywords: list[tuple[str, Any]],
    more: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as the twin takes them, without those that were not given.

    The first ``by_position`` may have come by position, which they did up to the first that
    is missing; the others have come by name, and go by name.
    """
    args = [value for _, value in positional[:by_position] if value is not _MISSING]
    args.extend(extra)
    named = [*positional[by_position:], *keywords]
    return args, more | {name: value for name, value in named if value is not _MISSING}
