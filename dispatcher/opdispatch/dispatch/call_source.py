"""Source of the functions generated for a schema; see ``compiled_call.py``.

For ``(Tensor x, int n=1) -> Tensor`` it is, except for the order of a few lines::

    def __call__(_op, /, x=_M, n=_M, *_extra, **_more):
        if _extra or _more:
            return _op.interpret_call(*_given([], [('x', x), ('n', n)], _extra, [], _more))
        try:
            _v1 = _d1 if n is _M else n         # and checked to be an int
            _calls = (
                _op._entry.calls if not _on or (_s := _local()) is _DEFAULT
                else _op._entry.calls_of_states.get(_s.switched, _none)
            )
            if x is an array:
                _k = _calls.arrays              # None, if it is the first call of its kind
            elif x is a plain tensor:
                _k = _calls.recorded if x.requires_grad_flag else _calls.tensors
            else:
                _b = key bits of x              # KeyError, if it is not a tensor
                _k = _calls[_b]                 # KeyError, if it is the first call of its kind
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
from collections.abc import Sequence
from typing import Any

from opdispatch.autograd.variable import counter_of
from opdispatch.boxing.named_results import result_class, result_names
from opdispatch.dispatch.argument_source import (
    IS_TENSOR,
    MISSING,
    ArgumentSource,
    argument_globals,
    is_taken,
)
from opdispatch.dispatch.operator_entry import NO_CALLS
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE, SWITCHED_ON
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import TENSOR, ListType, SchemaType

_FIND_CALLS = (
    "_calls = _op._entry.calls if not _on or (_s := _local()) is _DEFAULT"
    " else _op._entry.calls_of_states.get(_s.switched, _none)"
)


class CallSource:
    """Writes the source of one schema's entry points. Generated names start with ``_``.

    ``globals`` are the names that the generated code refers to.
    """

    def __init__(self, schema: FunctionSchema) -> None:
        self.schema = schema
        self.globals: dict[str, Any] = argument_globals() | {
            "_on": SWITCHED_ON,
            "_local": LOCAL_STATE.get,
            "_DEFAULT": DEFAULT_STATE,
            "_given": _given,
            "_none": NO_CALLS,
            "_counter_of": counter_of,
        }
        # A schema may use Python's keywords, generated names, or one name twice: such an argument
        # gets a generated name, by which no caller can pass it. See `_parameters`.
        self.arguments: list[ArgumentSource] = []
        known = [argument.name for argument in schema.arguments]
        for place, argument in enumerate(schema.arguments):
            usable = (
                not keyword.iskeyword(argument.name)
                and not argument.name.startswith("_")
                and known.count(argument.name) == 1
                and argument.name.isidentifier()
            )
            name = argument.name if usable else f"_a{place}"
            self.arguments.append(ArgumentSource(place, argument, name))
            self.globals |= self.arguments[-1].globals
        self.names = [each.name for each in self.arguments]
        self.dispatching = [each for each in self.arguments if each.kind.dispatches]
        positional = [each for each in self.arguments if not each.argument.kwarg_only]
        # Parameters up to the last one with a generated name are positional-only. The interpreter
        # path handles callers that pass them by name.
        ours = [place for place, each in enumerate(positional) if each.name != each.argument.name]
        first = ours[-1] + 1 if ours else 0
        self.positional_only = [each.name for each in positional[:first]]
        self.positional = [each.name for each in positional[first:]]
        self.keyword_only = [
            each.name
            for each in self.arguments
            if each.argument.kwarg_only and each.name == each.argument.name
        ]

    def call(self, function: str) -> str:
        """Return the source of ``__call__``: the keys come from the arguments."""
        unusual = "_extra or _more"
        fallback = f"return _op.interpret_call(*{self._collected()})"
        return self._function(function, ["_op"], [], unusual, self._find_kernel(), fallback)

    def packet(self, function: str) -> str:
        """Return the source of a packet's ``_bind``; see ``_bound``."""
        unusual = "_op is None or _extra or _more"
        fallback = f"return _packet._interpret_call(*{self._collected()})"
        first = ["_op = _only"]  # read once: another thread may set it to None
        find = self._find_kernel()
        return self._bound(function, self._function("__call__", [], first, unusual, find, fallback))

    def call_converted(self, function: str) -> str:
        """Return the source of ``call_converted``: all arguments are given, and converted.

        Empty, if ``link`` is empty.
        """
        if not (parameters := self._given_by_name()):
            return ""
        passed = [each.name for each in self.arguments]
        otherwise = f"return _op({self._arguments(passed)})"
        lines = [f"def {function}(_op, {parameters}):", *self.direct(otherwise)]
        return "\n    ".join(lines) + "\n"

    def direct(
        self, otherwise: str, *, converts: bool = False, as_tuple: bool = False
    ) -> list[str]:
        """Return the lines of a function that directly calls the kernel for tensors of ``_op``.

        The line ``otherwise`` is for all other arguments, and for first calls. The parameters are
        the schema's arguments, all of them given. If ``converts``, it converts them for the kernel.
        If ``as_tuple``, a list of results is returned as a tuple.
        """
        values = [line for each in self.arguments for line in each.convert(converts)]
        # each argument either is a tensor or is not
        if all(each.kind is TENSOR for each in self.arguments):
            find = self._find_by_bits(["_k = None"])
        else:
            lines = [f"    {line}" for line in (*values, *self._find_kernel())]
            find = ["try:", *lines, "except _errors: _k = None"]
        return [
            *find,
            f"if _k is None: {otherwise}",
            *self._call(),
            *self._returns(as_tuple=as_tuple, known=self._known_type),
        ]

    @property
    def is_sure(self) -> bool:
        """Whether the types of the arguments alone can show that an overload accepts them."""
        named = sum(argument.kwarg_only for argument in self.schema.arguments)
        all_sure = all(each.is_sure() for each in self.arguments)
        return bool(self.arguments) and len(self.keyword_only) == named and all_sure

    def packet_of_several(self, function: str) -> str:
        """Return the source of ``_bind`` of a packet with several overloads; see ``_bound``.

        Its ``_only`` is the overload that is tried first, and is chosen if it certainly accepts the
        arguments; see ``is_sure``. Positional parameters have no names, since those of other
        overloads may differ.
        """
        positional = [*self.positional_only, *self.positional]
        given, named = ", ".join(positional), _named(self.keyword_only)
        required = [each.name for each in self.arguments if not each.argument.has_default]
        any_call = f"_packet._call_any([{given}], _extra, {{{named}**_more}})"
        call_any = f"return {any_call}"
        unusual, otherwise, unknown = "_extra or _more", call_any, call_any
        # Other overloads, such as those for a number with an array, usually get as many arguments
        # as this one requires. A conditional expression evaluates no more than it needs.
        if required and required == positional[: len(required)]:
            types = ", ".join(f"_type({name})" for name in required)
            args = ", ".join(required)
            choose = f"_packet._choose(({args},), {{}})"
            kept_call = f"(_packet._by_types.get(({types},)) or {choose})({args})"
            if len(required) == len(self.arguments):
                unusual = f"{unusual} or {required[-1]} is _M"
                otherwise, unknown = f"return {kept_call}", f"return {choose}({args})"
            else:
                optional = [each.name for each in self.arguments if each.argument.has_default]
                is_usual = f"{required[-1]} is not _M and {' is '.join([*optional, '_M'])}"
                otherwise = f"return {kept_call} if {is_usual} else {any_call}"
        lines = [
            f"if {unusual}: {call_any}",
            "_op = _only",
            f"if _op is None: {otherwise}",
            *(line for each in self.arguments for line in each.take()),
            *self._find_kernel_if_sure(otherwise),
            f"if _k is None: {unknown}",
            *self._call(),
            *self._returns(known=self._known_type),
        ]
        before = "".join(f"{name}=_M, " for name in positional)
        after = "".join(f", {name}=_M" for name in self.keyword_only)
        head = f"def __call__({before}{'/, ' if before else ''}*_extra{after}, **_more):"
        return self._bound(function, "\n    ".join([head, *lines]) + "\n")

    @staticmethod
    def _bound(function: str, call: str) -> str:
        """Return the source of ``_bind``, which sets a packet's ``_call`` and ``_clear``.

        ``_call`` has the packet and ``_only`` in its closure, since Python is slow to read
        attributes of an object whose class has a ``__getattr__``.
        """
        clear = ["def clear():", "    nonlocal _only", "    _only = None"]
        keep = "_packet._call, _packet._clear = __call__, clear"
        lines = [*call.splitlines(), *clear, keep]
        return "\n    ".join([f"def {function}(_packet, _only):", *lines]) + "\n"

    def redispatch(self, function: str) -> str:
        """Return the source of ``redispatch``: the keys are given; local key sets do not apply."""
        body = [
            *(line for each in self.arguments for line in each.look_at_type()),
            "_k = _op._entry.redispatches[_keys.bits]",
        ]
        fallback = f"return _op.interpret_redispatch(_keys, *{self._collected()})"
        unusual = "_extra or _more or _on and _local().trace is not None"
        own = ["_op", "_keys"]
        return self._function(function, own, [], unusual, body, fallback, reads_bits=False)

    def redispatch_converted(self, function: str) -> str:
        """Return the source of ``redispatch_converted``: all arguments are given, and converted.

        Lists are copied again: a kernel may change its own, and the caller may keep this one.
        """
        values = [each.fresh() for each in self.arguments]
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
        """Return the source of ``_link``, which is ``redispatch_converted`` for a given kernel.

        Empty, if a keyword-only argument has a name that cannot be a parameter's.
        """
        if not (parameters := self._given_by_name()):
            return ""
        values = [each.fresh() for each in self.arguments]
        lines = [
            f"def {function}(_op, _keys, _k):",
            "    _check = _op.call_signature.check_result",
            f"    def _call({parameters}):",
            f"        _r = _k({self._arguments(values)})",
            *(f"        {line}" for line in self._returns("_check")),
            "    _call.kernel = _k",
            "    return _call",
        ]
        return "\n".join(lines) + "\n"

    def _given_by_name(self) -> str:
        """Return the source of parameters that are all given, keyword-only ones by name.

        Empty, if one of these names cannot be a parameter's.
        """
        if len(self.keyword_only) < sum(a.kwarg_only for a in self.schema.arguments):
            return ""
        star = ["*"] if self.keyword_only else []
        return ", ".join([*self.positional_only, *self.positional, *star, *self.keyword_only])

    def boxed(self) -> str:
        """Return the source of ``redispatch_boxed``.

        It takes the stack unchecked, and checks the returns.
        """
        lines = [
            "def redispatch_boxed(_op, keys, stack):",
            "    _k = _op._entry.boxed_redispatches.get(keys.bits)",
            "    if _k is None or _on and _local().trace is not None:",
            "        return _op.interpret_redispatch_boxed(keys, stack)",
            "    _k(stack)",
        ]
        returns = self.schema.returns
        if len(returns) == 1 and returns[0].type is TENSOR:
            one = IS_TENSOR.format("stack[0]")
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
        values = [line for each in self.arguments for line in each.set_value(reads_bits)]
        returns = self._returns(known=self._known_type if reads_bits else "")
        lines = [
            f"def {function}({self._parameters(own)}):",
            *(f"    {line}" for line in first),
            f"    if {unusual}: {fallback}",
            "    try:",
            *(f"        {line}" for line in (*values, *body)),
            "    except _errors:",
            "        _k = None",
            # Outside the handler, so that the interpreter path's errors do not have this one as
            # context.
            "    if _k is None:",
            f"        {fallback}",
            *(f"    {line}" for line in (*self._call(counts=reads_bits), *returns)),
        ]
        return "\n".join(lines) + "\n"

    def _parameters(self, own: list[str]) -> str:
        """Return the source of the parameters; unknown keyword arguments are in ``_more``.

        Python itself refuses an argument that is given both by position and by name, with a
        TypeError: detecting that here would make each call by name half as slow again.
        """
        defaulted = [f"{name}=_M" for name in self.positional]
        before = [*own, *(f"{name}=_M" for name in self.positional_only)]
        slash = ["/"] if before else []
        after = [f"{name}=_M" for name in self.keyword_only]
        return ", ".join([*before, *slash, *defaulted, "*_extra", *after, "**_more"])

    def _find_kernel(self) -> list[str]:
        """Return lines that set ``_k`` to the kernel for the keys of the arguments.

        They raise KeyError or TypeError if there is none.
        """
        return self._find_by_bits([*self._set_bits(), "_k = _calls[_b]"])

    def _find_by_bits(self, others: list[str]) -> list[str]:
        """Return lines that set ``_k``, using ``others`` unless all tensors are arrays or plain."""
        arguments = self.dispatching
        if not self._is_usual:
            return [_FIND_CALLS, *others]
        needs = " or ".join(each.needs_gradient() for each in arguments)
        first = arguments[0]
        are_tensors = " and ".join(each.are_tensors(each is first) for each in arguments)
        are_arrays = " and ".join(each.are_arrays(each is first) for each in arguments)
        return [
            _FIND_CALLS,
            *(line for each in arguments for line in each.sort_list()),
            *(["_n = None"] if self._counted else ()),
            *([f"_t = _type({first.value})"] if first.kind is TENSOR else ()),
            f"if {are_arrays}: _k = _calls.arrays",
            *self._find_counted(are_tensors, needs),
            f"elif {are_tensors}: _k = _calls.recorded if {needs} else _calls.tensors",
            "else:",
            *(f"    {line}" for line in others),
        ]

    @property
    def _is_usual(self) -> bool:
        """Whether types of arguments alone show that all are arrays, or all plain tensors.

        At least one of them is certainly there.
        """
        arguments = self.dispatching
        has_generators = any(each.add_bits_of_generator() for each in self.arguments)
        are_usual = arguments and all(each.is_usual for each in arguments)
        return bool(are_usual) and not arguments[0].may_be_nothing and not has_generators

    @property
    def _known_type(self) -> str:
        """Name of the type of a tensor, once the kernel is found; "" if there may be none."""
        return "_t" if self._is_usual and self.dispatching[0].kind is TENSOR else ""

    @property
    def _counted(self) -> str:
        """Name of the only argument that is written to, for ``Calls.counted``; otherwise ""."""
        written = [each for each in self.arguments if each.argument.is_write]
        is_one = len(written) == 1 and written[0].kind is TENSOR and self._is_usual
        return written[0].value if is_one else ""

    def _find_counted(self, are_tensors: str, needs: str) -> list[str]:
        """Return lines that set ``_k`` to ``Calls.counted``, and read the version before."""
        if not (name := self._counted):
            return []
        return [
            f"elif {are_tensors} and (_k := _calls.counted) is not None and not ({needs}):",
            f"    if (_m := {name}.autograd_meta) is None or (_n := _m.counter) is None:",
            f"        _n = _counter_of({name})",
            "    _w = _n.value",
        ]

    def _call(self, *, counts: bool = True) -> list[str]:
        """Return the lines that call ``_k``, and increment a version that the call did not."""
        count = "if _n is not None and _n.value == _w: _n.value = _w + 1"
        call = f"_r = _k({self._arguments([each.value for each in self.arguments])})"
        return [call, count] if counts and self._counted else [call]

    def _set_bits(self) -> list[str]:
        """Return lines that set ``_b`` to the key bits of the tensors."""
        of_generators = [line for each in self.arguments for line in each.add_bits_of_generator()]
        if not self.dispatching:
            return ["_b = 0", *of_generators]
        first, *others = self.dispatching
        return [
            *first.set_bits(),
            *(line for each in others for line in each.add_bits()),
            *of_generators,
        ]

    def _find_kernel_if_sure(self, otherwise: str) -> list[str]:
        """Return lines that set ``_k``, or run ``otherwise`` if types do not prove acceptance."""
        tensors = [each for each in self.arguments if each.kind is TENSOR]
        others = " and ".join(each.is_sure() for each in self.arguments if each not in tensors)
        sure = " and ".join(each.is_sure() for each in tensors)
        # Nothing here raises: an error of a kernel called by ``otherwise`` must not be caught.
        by_bits = [*self._set_bits(), "_k = _calls.get(_b)"]
        return [
            *([f"if not ({others}): {otherwise}"] if others else []),
            *self._find_by_bits([*([f"if not ({sure}): {otherwise}"] if sure else []), *by_bits]),
        ]

    def _arguments(self, values: Sequence[str]) -> str:
        """Return the source of the kernel's arguments, keyword-only ones by its own names."""
        places = list(zip(self.names, values, self.schema.arguments, strict=True))
        parts = [value for _, value, argument in places if not argument.kwarg_only]
        named = [(n, v, a) for n, v, a in places if a.kwarg_only]
        if all(name == argument.name for name, _, argument in named):
            parts += [f"{name}={value}" for name, value, _ in named]
        else:
            parts.append("**{" + ", ".join(f"{a.name!r}: {v}" for _, v, a in named) + "}")
        return ", ".join(parts)

    def _collected(self) -> str:
        """Return the source of the interpreter path's arguments, a pair of args and kwargs."""
        # A keyword-only argument with a generated name was not given, or is in `_more`.
        parts = [
            f"[{', '.join(self.positional_only)}]",
            _pairs(self.positional),
            "_extra",
            _pairs(self.keyword_only),
            "_more",
        ]
        return f"_given({', '.join(parts)})"

    # The entry's signature, since the operator may be gone when its kernel returns.
    def _returns(
        self,
        check_result: str = "_op._entry.signature.check_result",
        *,
        as_tuple: bool = False,
        known: str = "",
    ) -> list[str]:
        """Return the lines that return ``_r``, checked unless types show that it needs no check.

        ``known`` is the name of a type of tensors, which results usually have.
        """
        returns = self.schema.returns
        check = f"return _tuple({check_result}(_r))" if as_tuple else f"return {check_result}(_r)"
        if not returns:
            return ["if _r is None: return None", check]
        if len(returns) == 1:
            kind = returns[0].type
            if test := _is_returned(kind, "_r", known):
                return [f"if {test}: return _r", check]
            test = _is_returned(kind.element, "_e", known) if isinstance(kind, ListType) else ""
            if not test:
                return [check]
            return [
                "if _type(_r) is _list:",
                "    for _e in _r:",
                f"        if not ({test}): break",
                # A copy, because the kernel may keep its list.
                f"    else: return {'(*_r,)' if as_tuple else '_r.copy()'}",
                check,
            ]
        names = [f"_r{place}" for place in range(len(returns))]
        tests = [_is_returned(each.type, n, known) for each, n in zip(returns, names, strict=True)]
        if not all(tests):
            return [check]
        usual, new = "_type(_r) is _tuple", "_r"
        if named := result_names(self.schema):
            self.globals |= {"_named": result_class(named), "_new": tuple.__new__}
            # A result that another layer has already named stays unchanged.
            usual, new = f"(_n := _type(_r) is _named) or {usual}", "_r if _n else _new(_named, _r)"
        return [
            f"if {usual}:",
            f"    try: {', '.join(names)} = _r",
            "    except ValueError: pass",  # of another length
            "    else:",
            f"        if {' and '.join(f'({test})' for test in tests)}: return {new}",
            check,
        ]


def _is_returned(kind: SchemaType, name: str, known: str) -> str:
    """Return an expression that is true only for results that a check returns unchanged."""
    if kind is not TENSOR:
        return is_taken(kind, name)
    usual = f"_type({name}) is {known} or " if known else ""
    return usual + IS_TENSOR.format(name)


def _named(names: list[str]) -> str:
    """Return the source of the items of a dict from names to values."""
    return "".join(f"{name!r}: {name}, " for name in names)


def _pairs(names: list[str]) -> str:
    """Return the source of a list of pairs of names and values."""
    return "[" + ", ".join(f"({name!r}, {name})" for name in names) + "]"


def _given(
    positional_only: list[Any],
    positional: list[tuple[str, Any]],
    extra: tuple[Any, ...],
    keyword_only: list[tuple[str, Any]],
    more: dict[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """Return the given arguments of a call as args and kwargs for the interpreter path.

    Arguments are passed by name where possible; see Note [Compiled for one schema]. With ``extra``
    positional arguments, that is neither possible nor needed, since the call will be rejected.
    """
    args = [value for value in positional_only if value is not MISSING]
    if extra:
        args += [*(value for _, value in positional), *extra]
        positional = []
    named = {name: value for name, value in [*positional, *keyword_only] if value is not MISSING}
    return args, named | more
