"""The short way through a call, generated for each schema.

The counterpart of the C++ templates around ``Dispatcher::call``. A handle's class gets a
``__call__`` with the schema's own parameters, which reads the key bits of the tensors, finds the
kernel that a call with these bits led to before, and calls it. Whenever anything is out of
the ordinary (a first call, a local include or exclude set, a trace, a missing, surplus or
unusual argument), it hands over to the readable twin, ``OperatorHandle.interpret_call``, which
gives the same answer or the error. ``OPDISPATCH_COMPILE=0`` leaves everything to the twin.
"""

from __future__ import annotations

import keyword
import linecache
import os
import weakref
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

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

# Handle classes by the text of their parameters and returns: operators of one shape share one.
# Two threads may both compile a shape; either class will do.
_classes: WeakValueDictionary[str, type[OperatorHandle]] = WeakValueDictionary()


class _Missing:
    """Stands for an argument that was not given."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


_MISSING = _Missing()


def handle_class_for(schema: FunctionSchema | None) -> type[OperatorHandle]:
    """The class for handles of operators with that schema."""
    if schema is None or not COMPILE:
        return OperatorHandle
    shape = str(schema).removeprefix(str(schema.name))
    cls = _classes.get(shape)
    if cls is None:
        cls = compile_handle_class(schema, shape)
        _classes[shape] = cls
    return cls


def compile_handle_class(schema: FunctionSchema, shape: str) -> type[OperatorHandle]:
    """Generates the subclass of OperatorHandle with the two compiled entry points."""
    source = _CallSource(schema)
    text = source.call("__call__") + "\n" + source.redispatch("redispatch")
    filename = f"<opdispatch call {shape}>"
    # Tracebacks can then show the generated lines.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    members: dict[str, Any] = {}
    exec(compile(text, filename, "exec"), source.globals, members)
    cls = type("OperatorHandle", (OperatorHandle,), {"__slots__": (), **members})
    weakref.finalize(cls, linecache.cache.pop, filename, None)
    return cls


class _CallSource:
    """Writes the source of one schema's entry points. All names of ours start with ``_``."""

    def __init__(self, schema: FunctionSchema) -> None:
        self.schema = schema
        self.globals: dict[str, Any] = {
            "_M": _MISSING,
            "_PLAIN": PLAIN_KEY_BITS,
            "_Tensor": Tensor,
            "_bits_of": key_bits_of,
            "_local": LOCAL_STATE.get,
            "_DEFAULT": DEFAULT_STATE,
            "_given": _given,
            "_placed": _placed,
            "_names": tuple(a.name for a in schema.arguments if not a.kwarg_only),
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
        dispatching = [(i, a) for i, a in enumerate(self.schema.arguments) if a.type.dispatches]
        bits = ["_b = 0", *(line for i, a in dispatching for line in self._bits(i, a))]
        if dispatching and dispatching[0][1].type is TENSOR:  # the first needs no union
            bits[0:2] = [bits[1].replace("_b |= ", "_b = ")]
        body = [*bits, "_k = _op._entry.calls[_b]"]
        fallback = f"return _op.interpret_call(*{self._collected()})"
        return self._function(
            function, ["_op"], "_extra or _more or _local() is not _DEFAULT", body, fallback
        )

    def redispatch(self, function: str) -> str:
        """``redispatch``: the keys are given; local sets do not count."""
        body = [
            *(line for i, a in enumerate(self.schema.arguments) for line in self._is_tensor(i, a)),
            "_k = _op._entry.redispatches[_keys.bits]",
        ]
        fallback = f"return _op.interpret_redispatch(_keys, *{self._collected()})"
        unusual = "_extra or _more or _local().trace is not None"
        return self._function(function, ["_op", "_keys"], unusual, body, fallback)

    def _function(
        self, function: str, own: list[str], unusual: str, body: list[str], fallback: str
    ) -> str:
        checks = [line for i, a in enumerate(self.schema.arguments) for line in self._check(i, a)]
        lines = [
            f"def {function}({self._parameters(own)}):",
            f"    if {unusual}:",
            *(f"        {line}" for line in self._place_by_name(function, own)),
            f"        {fallback}",
            *(f"    {line}" for line in self._values()),
            "    try:",
            *(f"        {line}" for line in (*checks, *body)),
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

    def _values(self) -> list[str]:
        """Lines that set the values of arguments to what was given, or to the default."""
        lines = []
        for place, argument in enumerate(self.schema.arguments):
            name, value = self.names[place], self.values[place]
            default = f"_d{place}" if argument.has_default else "_M"
            if argument.kwarg_only and name != argument.name:
                lines.append(f"{value} = {default}")
            elif argument.has_default:
                lines.append(f"{value} = {default} if {name} is _M else {name}")
            elif value != name:
                lines.append(f"{value} = {name}")
        return lines

    def _place_by_name(self, function: str, own: list[str]) -> list[str]:
        """Lines that call again, with the arguments in place that were given by name."""
        named = list(zip(self.names, self.schema.arguments, strict=True))
        given = "".join(f"{name}, " for name, argument in named if not argument.kwarg_only)
        if not given:
            return []
        keywords = [f"{n}={n}" for n, a in named if a.kwarg_only and n == a.name]
        again = ", ".join([*own[1:], "*_p", *keywords])
        return [
            f"_p = _placed(_names, ({given}), _extra, _more)",
            f"if _p is not None: return _op.{function}({again})",
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
        return f"_given([{positional}], _extra, [{keywords}], _more)"

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
            in_range = f"-0x8000000000000000 <= {name} <= 0x7FFFFFFFFFFFFFFF"
            return [f"if _type({name}) is not _int or not {in_range}: {convert}"]
        if isinstance(kind, OptionalType):
            return [f"if {name} is not None: {convert}"]
        return [convert]

    def _bits(self, place: int, argument: Argument) -> list[str]:
        """Lines that add the key bits of a tensor argument to ``_b``, or raise KeyError."""
        name, kind = self.values[place], argument.type
        one = "({0}.key_bits if _type({0}) is _Tensor else _PLAIN[_type({0})])"
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
            return ["if _type(_r) in _PLAIN or _type(_r) is _Tensor: return _r", check]
        return [check]


def _is_one_tensor(kind: SchemaType) -> bool:
    """Whether it is ``Tensor`` or ``Tensor?``."""
    return kind.dispatches and not isinstance(kind, ListType)


def _accepts_anything(convert: Callable[[Any], Any]) -> bool:
    """Whether a converter would take even the stand-in for an argument that was not given."""
    try:
        convert(_MISSING)
    except TypeError:
        return False
    return True


def _placed(
    names: tuple[str, ...],
    positional: tuple[Any, ...],
    extra: tuple[Any, ...],
    more: dict[str, Any],
) -> list[Any] | None:
    """The positional arguments of a call, with those of ``more`` in place.

    None if ``more`` has others as well, or there is nothing to place: then the call is the twin's.
    """
    if extra or not more:
        return None
    left = len(more)
    args = list(positional)
    for place, name in enumerate(names):
        if args[place] is _MISSING and name in more:
            args[place] = more[name]
            left -= 1
    return None if left else args


def _given(
    positional: list[tuple[str, Any]],
    extra: tuple[Any, ...],
    keywords: list[tuple[str, Any]],
    more: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call as the twin takes them, without those that were not given.

    What stands behind an argument that was not given has come by name, and goes by name.
    """
    args: list[Any] = []
    kwargs = dict(more)
    gap = False
    for name, value in positional:
        if value is _MISSING:
            gap = True
        elif gap:
            kwargs[name] = value
        else:
            args.append(value)
    args.extend(extra)
    kwargs.update((name, value) for name, value in keywords if value is not _MISSING)
    return args, kwargs
