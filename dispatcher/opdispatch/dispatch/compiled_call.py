"""The short way through a call, generated for each schema.

The counterpart of the C++ templates around ``Dispatcher::call``. A handle's class gets a
``__call__`` with the schema's own parameters, which reads the key bits of the tensors, finds the
kernel that a call with these bits led to before, in a task that had the same keys switched on and
off, and calls it. Whenever anything is out of the ordinary (a first call, a trace, a missing,
surplus or unusual argument), it hands over to the interpreter path,
``OperatorHandle.interpret_call``, which gives the same answer or the error.
``OPDISPATCH_COMPILE=0`` leaves everything to that path.

The three kinds of redispatch have compiled forms of the same kind; kernels that are layers get one
with the kernel already found (``KernelFunction.from_layer``). So has the call
of a packet that has one overload, or one for tensors alone: it is the call of the handle, in one
function. What is generated is in ``call_source.py``.

Note [Compiled for one schema]
    Generated parameters have the names of one schema. An entry's schema never changes while it is
    published (I4 of ``OperatorEntry``), so they fit for as long as it is. When it dies, its handle
    becomes an ordinary OperatorHandle, which takes the arguments as they come, and binds them by
    whatever schema the name has then. A call that was under way at that moment, its arguments
    bound, goes to the interpreter path with each argument under its old name: it may be refused,
    but a value can never end up under another name than its caller gave it.
"""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from opdispatch.boxing.generated_source import keep_lines, run_source
from opdispatch.dispatch.call_source import CallSource
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.schema.function_schema import FunctionSchema

COMPILE = os.environ.get("OPDISPATCH_COMPILE", "1") != "0"

MOST_ARGUMENTS = 64
"""Operators with more are interpreted: 500 took 0.2 s to compile, and 8,000 seven seconds."""

# Classes by the text of their parameters and returns: operators of one shape share one.
# Two threads may both compile a shape; either class will do.
_classes: WeakValueDictionary[str, type[OperatorHandle]] = WeakValueDictionary()
_packet_classes: WeakValueDictionary[tuple[type, str], type] = WeakValueDictionary()

P = TypeVar("P")


def packet_class_for(
    base: type[P], schema: FunctionSchema, *, is_only_overload: bool = True
) -> type[P]:
    """Return ``base`` with a ``__call__`` for packets that have an overload of that schema.

    It calls the handle that is the packet's ``_only``. While that is None, and whenever it is in
    doubt, it hands over to methods of the packet. If there are other overloads, this one must be
    the one that is tried first; ``base`` itself, if types do not tell what it takes.
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
        cls = _subclass(base, f"packet {shape}", source, [write("__call__")])
        _packet_classes[base, shape] = cls
    return cls


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


def _subclass(base: type[P], title: str, source: CallSource, functions: list[str]) -> type[P]:
    """Return ``base`` with the methods of that source."""
    members: dict[str, Any] = {}
    filename = run_source(title, "\n".join(functions), source.globals, members)
    cls = type(base.__name__, (base,), {"__slots__": (), **members})
    keep_lines(filename, cls)
    return cls
