"""The fast path of a call, generated for each schema.

The counterpart of the C++ templates around ``Dispatcher::call``. A handle's class gets a
``__call__`` with the schema's own parameters, which reads the key bits of the tensors, looks up the
kernel that an earlier call with these bits found, in a task with the same included and excluded
keys, and calls it. In every unusual case (a first call, a trace, a missing, surplus or unusual
argument) it calls the interpreter path, ``OperatorHandle.interpret_call``, which returns the same
result or raises the error. With ``OPDISPATCH_COMPILE=0``, all calls take that path.

The three kinds of redispatch have compiled forms, too; kernels that are layers get one for a kernel
that has been looked up already (``KernelFunction.from_layer``). The call of a packet with one
overload, or one overload for tensors only, is compiled to a single function together with the call
of the handle. ``call_source.py`` generates the source.

Note [Compiled for one schema]
    Generated parameters have the names of one schema. An entry's schema never changes while it is
    published (I4 of ``OperatorEntry``), so the parameters match it all that time. When the entry
    dies, its handle becomes an ordinary OperatorHandle, which binds arguments by the current schema
    of the name. A call in progress at that moment, whose arguments are already bound, goes to the
    interpreter path with each argument under its old name: it may be refused, but no value can be
    bound to another name than its caller gave it.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from opdispatch.boxing.generated_source import keep_lines, run_source
from opdispatch.dispatch.call_source import CallSource
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.schema.function_schema import FunctionSchema

COMPILE = os.environ.get("OPDISPATCH_COMPILE", "1") != "0"

MOST_ARGUMENTS = 64
"""Operators with more arguments are interpreted: compiling 500 took 0.2 s, and 8,000 seven seconds.
"""

# Classes by the source of their parameters and returns, shared by operators of equal shape. Two
# threads may both compile a shape; either class will do.
_classes: WeakValueDictionary[str, type[OperatorHandle]] = WeakValueDictionary()
_packet_classes: WeakValueDictionary[tuple[type, str], type] = WeakValueDictionary()

P = TypeVar("P")


def packet_class_for(
    base: type[P], schema: FunctionSchema, *, is_only_overload: bool = True
) -> type[P]:
    """Return ``base`` with a ``_bind`` for packets that have an overload of that schema.

    ``_bind(handle)`` keeps a function that calls the handle in the packet's slot ``_call``, and in
    ``_clear`` one that makes it forget the handle: after that, and in every unusual case, calls go
    to methods of the packet. If there are other overloads, this one must be the one that is tried
    first; the result is ``base`` itself if types do not show what this one accepts.
    """
    if not COMPILE or len(schema.arguments) > MOST_ARGUMENTS:
        return base
    shape = _shape_of(schema) if is_only_overload else f"of several, {_shape_of(schema)}"
    cls: type[P] | None = _packet_classes.get((base, shape))
    if cls is None:
        source = CallSource(schema)
        if not (is_only_overload or source.is_sure):
            return base
        write = source.packet if is_only_overload else source.packet_of_several
        # A call of a packet is one of the function in its slot, whose parameters it has.
        members = {"__call__": vars(base)["_call"], "__signature__": property(_signature_of_call)}
        cls = _subclass(base, f"packet {shape}", source, [write("_bind")], members)
        _packet_classes[base, shape] = cls
    return cls


def _signature_of_call(packet: Any) -> inspect.Signature:
    return inspect.signature(packet.__call__)


def handle_class_for(schema: FunctionSchema | None) -> type[OperatorHandle]:
    """Return the class for handles of operators with that schema."""
    if schema is None or not COMPILE or len(schema.arguments) > MOST_ARGUMENTS:
        return OperatorHandle
    shape = _shape_of(schema)
    cls = _classes.get(shape)
    if cls is None:
        source = CallSource(schema)
        functions = [
            source.call("__call__"),
            source.call_converted("call_converted"),
            source.redispatch("redispatch"),
            source.redispatch_converted("redispatch_converted"),
            source.link("_link"),
            source.boxed(),
        ]
        cls = _subclass(OperatorHandle, f"call {shape}", source, functions)
        _classes[shape] = cls
    return cls


def _shape_of(schema: FunctionSchema) -> str:
    return str(schema).removeprefix(str(schema.name))


def _subclass(
    base: type[P],
    title: str,
    source: CallSource,
    functions: list[str],
    members: Mapping[str, Any] = MappingProxyType({}),
) -> type[P]:
    """Return a subclass of ``base`` with the methods in that source and other members."""
    methods: dict[str, Any] = {}
    filename = run_source(title, "\n".join(functions), source.globals, methods)
    cls = type(base.__name__, (base,), {"__slots__": (), **methods, **members})
    keep_lines(filename, cls)
    return cls
