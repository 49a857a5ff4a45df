"""Boxed calls <-> ``v1.CallRequest`` and ``v1.CallReply``.

    caller      call_request       ->  CallRequest
    chooser                            undecoded_arguments
    callee                             decode_arguments
                                       ... the kernel runs ...
    callee      CallReply         <-   reply_of_returns
    caller      result_of_reply (or returns_of_reply)

Note [Arguments that are written to]
    The schema says which arguments an operator writes to. The callee decodes those, and only
    those, into writable arrays, and sends their new contents back; the caller copies them
    into its own arrays. A return that is such an argument is sent as a reference to it, so that
    the caller gets its own object back, as it would in one process.

    Remote tensors are changed in place, and nothing is sent back.

    Only dense tensors can be written to: the number of values of a sparse one may change, and the
    caller's object is of another library's class.

    An array that is passed twice arrives as two arrays, except in shared memory. If both are
    written to, neither has the changes of the other, and the caller refuses them.

    Arrays in shared memory are written to in place, and no contents are sent back. If the caller's
    own array is in that memory, even a call that fails may have changed it.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import device_errors, find_backend
from opdispatch.autograd.remote_history import note_call
from opdispatch.boxing.named_results import make_results, result_names
from opdispatch.errors import ArgumentError, ReturnError
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.trace_line import TraceLine
from opdispatch.tensors.generator import Generator
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.errors import WireError
from opdispatch_wire.generators import (
    add_generator_uses,
    generator_from_proto,
    generator_to_proto,
    take_generator_uses,
)
from opdispatch_wire.modes import add_modes
from opdispatch_wire.mutations import (
    add_mutations,
    argument_of,
    check_can_be_written,
    check_writes,
    is_same_memory,
    prepare_write,
)
from opdispatch_wire.nesting_limits import ValueCount
from opdispatch_wire.remote_values import remote_tensors_in
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, values_pb2
from opdispatch_wire.values import (
    DecodeRemote,
    check_text,
    fill_value,
    undecoded_from_proto,
    value_from_proto,
)

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import Argument, FunctionSchema
    from opdispatch_wire.tensors import CalleeTensorMemory, CallerTensorMemory


_MAY_BE_REMOTE = ("remote", "list")

BeginWrites = Callable[[Sequence[tuple[values_pb2.RemoteTensor, str]]], None]
"""Called with remote tensors about to be written to, and their positions in the request.
"""


def call_request(
    operator: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    trace: bool = False,
    request_id: int = 0,
    redispatch_keys: DispatchKeySet | None = None,
    memory: CallerTensorMemory | None = None,
) -> execution_pb2.CallRequest:
    """Return a call as a message, with the current task's local dispatch keys and grad mode.

    With ``memory``, large tensors are placed there; the caller releases it, also after errors.
    Raises WireError, with a place such as ``$.args[2]``, for a value that cannot be sent, and
    ArgumentError for arguments that are nested too deeply or have too many values.
    """
    request = execution_pb2.CallRequest(
        id=request_id, operator=check_text(operator, "$.operator"), trace=trace
    )
    count = ValueCount()
    for i, value in enumerate(args):
        _fill_argument(request.args.add(), value, f"$.args[{i}]", memory, count)
    for name, value in kwargs.items():
        at = f"$.kwargs[{reprlib.repr(name)}]"
        _fill_argument(request.kwargs[check_text(name, at)], value, at, memory, count)
    add_modes(request)
    if redispatch_keys is not None:
        request.redispatch_keys = redispatch_keys.bits
    return request


def _fill_argument(
    message: values_pb2.Value,
    value: Any,
    at: str,
    memory: CallerTensorMemory | None,
    count: ValueCount,
) -> None:
    if type(value) is Generator:
        generator_to_proto(message.generator, value)
    else:
        fill_value(message, value, at=at, memory=memory, count=count)


def undecoded_arguments(
    request: execution_pb2.CallRequest, remote: DecodeRemote | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments, all checked, without the elements of tensors.

    Tensors are WireTensors; see ``undecoded_from_proto``. Raises WireError, also for an argument
    with too many values, and the errors of ``remote``.
    """
    count = functools.partial(ValueCount().take, error=WireError)

    def decode(message: values_pb2.Value, at: str) -> Any:
        if message.WhichOneof("kind") == "generator":
            return generator_from_proto(message.generator, at=at)
        return undecoded_from_proto(message, at=at, remote=remote, count=count)

    args = [decode(message, f"$.args[{i}]") for i, message in enumerate(request.args)]
    kwargs = {
        name: decode(message, f"$.kwargs[{reprlib.repr(name)}]")
        for name, message in request.kwargs.items()
    }
    return args, kwargs


def decode_arguments(
    request: execution_pb2.CallRequest,
    schema: FunctionSchema,
    memory: CalleeTensorMemory | None = None,
    remote: DecodeRemote | None = None,
    begin_writes: BeginWrites | None = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments as a kernel takes them. Raises WireError, and the errors of ``remote``.

    Only arrays that the schema marks as written to are writable. ``begin_writes`` is called with
    the remote ones among them, if any, before ``remote`` is called for one. Whether the arguments
    match the schema is not checked here; see ``OperatorHandle.bind``.
    """
    written = {argument.name for argument in schema.arguments if argument.is_write}
    if memory is not None and written:
        memory.expect_writes()
    positional = [a for a in schema.arguments if not a.kwarg_only] if written else []
    messages = list(request.args)  # each access creates objects
    named = dict(request.kwargs) if request.kwargs else {}
    if written and begin_writes is not None:
        targets = _remote_targets(messages, named, positional, written)
        if targets:
            begin_writes(targets)

    def decode(message: values_pb2.Value, at: str, writable: bool) -> Any:
        if message.WhichOneof("kind") == "generator":
            return generator_from_proto(message.generator, at=at)
        return value_from_proto(message, at=at, writable=writable, memory=memory, remote=remote)

    args = [
        decode(message, f"$.args[{i}]", i < len(positional) and positional[i].name in written)
        for i, message in enumerate(messages)
    ]
    kwargs = {
        name: decode(message, f"$.kwargs[{reprlib.repr(name)}]", name in written)
        for name, message in named.items()
    }
    if written:
        for i, (argument, value) in enumerate(zip(positional, args, strict=False)):
            if argument.name in written:
                check_can_be_written(value, f"$.args[{i}]")
        for name in written.intersection(kwargs):
            check_can_be_written(kwargs[name], f"$.kwargs[{reprlib.repr(name)}]")
    return args, kwargs


def _remote_targets(
    args: Sequence[values_pb2.Value],
    kwargs: Mapping[str, values_pb2.Value],
    positional: Sequence[Argument],
    written: set[str],
) -> list[tuple[values_pb2.RemoteTensor, str]]:
    """Return the remote tensors among the arguments of these names; most calls have none."""
    found: list[tuple[values_pb2.RemoteTensor, str]] = []
    for i, (message, argument) in enumerate(zip(args, positional, strict=False)):
        if argument.name in written and message.WhichOneof("kind") in _MAY_BE_REMOTE:
            found += remote_tensors_in(message, f"$.args[{i}]")
    for name in written.intersection(kwargs):
        found += remote_tensors_in(kwargs[name], f"$.kwargs[{reprlib.repr(name)}]")
    return found


def reply_of_returns(
    request: execution_pb2.CallRequest,
    schema: FunctionSchema,
    arguments: Sequence[Any],
    returns: list[Any],
    *,
    interpreter: str = "",
    trace: Sequence[TraceLine] = (),
    memory: CalleeTensorMemory | None = None,
    keep: Callable[[list[Any], int], Any] | None = None,
) -> execution_pb2.CallReply:
    """Return the reply to a successful call. See Note [Arguments that are written to].

    ``arguments`` is the complete stack with which the kernel was called, and ``returns`` the one
    that it left, both in the order of the schema. Raises ReturnError if a value cannot be sent.
    With ``memory``, large tensors are placed there. ``keep(returns, i)`` is called for each return
    that is not one of the caller's arguments: it takes the value out of the list and returns the
    value to send in its place.
    """
    reply = execution_pb2.CallReply(id=request.id, interpreter=interpreter)
    draws = Generator in map(type, arguments)
    refers = draws or schema.is_mutable or any(each.alias_info for each in schema.returns)
    sent = _sent_arguments(request, schema, arguments) if refers else []
    if draws:
        add_generator_uses(reply, ((v, _sent_value(request, r), r) for _, v, r in sent))
    count = ValueCount()
    try:
        for argument, value, reference in sent:
            if argument.is_write:
                add_mutations(reply, request, reference, value, memory)
        for i in range(len(returns)):
            message = reply.returns.add()
            declared = schema.returns[i] if i < len(schema.returns) else None
            alias = _find_alias(declared, returns[i], sent)
            if alias is not None:
                message.argument.CopyFrom(alias)
            else:
                value = returns[i] if keep is None else keep(returns, i)
                fill_value(message, value, at=f"$.returns[{i}]", memory=memory, count=count)
    except (WireError, ArgumentError) as error:
        raise ReturnError(
            f"{schema.name} produced a value that cannot be sent: {error.message}",
            operator=str(schema.name),
        ) from error
    if names := result_names(schema):
        reply.result_names.add(names=names)
    if trace:
        reply.trace.extend(trace_line_to_proto(line, interpreter=interpreter) for line in trace)
    return reply


def result_of_reply(
    reply: execution_pb2.CallReply,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    memory: CallerTensorMemory | None = None,
    remote: DecodeRemote | None = None,
) -> Any:
    """Return the call's result: None, one value, or a tuple, named if the schema has names.

    ``args`` and ``kwargs`` are those of the call: arrays among them that the operator wrote to
    receive their new contents. ``memory`` is that of the call, and ``remote`` makes the proxy for a
    tensor that was kept. Raises the errors of ``returns_of_reply``.
    """
    returns = returns_of_reply(reply, args, kwargs, memory, remote)
    if len(returns) == 1:
        return returns[0]
    if reply.result_names and len(names := reply.result_names[0].names) == len(returns):
        return make_results(tuple(names), returns)
    return tuple(returns) if returns else None


def returns_of_reply(
    reply: execution_pb2.CallReply,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    memory: CallerTensorMemory | None = None,
    remote: DecodeRemote | None = None,
) -> list[Any]:
    """Return the results like ``result_of_reply``, with one item for each return of the schema.

    Raises the error that the reply carries; ArgumentError if an argument that the operator
    wrote to cannot take its new contents, in which case no argument has changed; WireError if
    the reply is malformed; and DeviceError.
    """
    if reply.HasField("error"):
        raise error_from_status(reply.error)
    writes = [
        prepare_write(mutation, args, kwargs, memory, at=f"$.mutations[{i}]")
        for i, mutation in enumerate(reply.mutations)
    ]
    returns = [
        argument_of(message.argument, args, kwargs, at=f"$.returns[{i}]")
        if message.WhichOneof("kind") == "argument"
        else value_from_proto(
            message, at=f"$.returns[{i}]", writable=True, memory=memory, remote=remote
        )
        for i, message in enumerate(reply.returns)
    ]
    if len(writes) > 1:
        check_writes(reply.mutations, writes)
    for target, contents in writes:
        if not is_same_memory(target, contents):  # it was written to in place
            backend = find_backend(type(target))
            assert backend is not None, "prepare_write gives arrays of backends"
            with device_errors(backend.device_of(target)):
                backend.assign(target, contents)
    take_generator_uses(reply, lambda reference, at: argument_of(reference, args, kwargs, at=at))
    if any(type(each) is Tensor or type(each) is list for each in returns):
        note_call(f"interpreter {reply.interpreter}", (*args, *kwargs.values()), returns)
    return returns


def trace_line_to_proto(line: TraceLine, *, interpreter: str = "") -> execution_pb2.TraceLine:
    """Return one line of the dispatch trace as a message, with its interpreter."""
    return execution_pb2.TraceLine(
        depth=line.depth,
        kind=line.kind,
        operator=line.operator,
        key=line.key,
        kernel=line.kernel,
        reason=line.reason,
        interpreter=interpreter,
    )


def trace_line_from_proto(message: execution_pb2.TraceLine) -> TraceLine:
    """Return the line.

    Without the interpreter, for which a process's own trace has no field.
    """
    return TraceLine(
        depth=message.depth,
        kind=message.kind,
        operator=message.operator,
        key=message.key,
        kernel=message.kernel,
        reason=message.reason,
    )


_Sent = list[tuple["Argument", Any, values_pb2.ArgumentRef]]


def _sent_arguments(
    request: execution_pb2.CallRequest, schema: FunctionSchema, arguments: Sequence[Any]
) -> _Sent:
    """Return the arguments in the request, which omits those equal to their defaults."""
    sent: _Sent = []
    for place, (argument, value) in enumerate(zip(schema.arguments, arguments, strict=False)):
        if argument.name in request.kwargs:
            sent.append((argument, value, values_pb2.ArgumentRef(name=argument.name)))
        elif place < len(request.args):
            sent.append((argument, value, values_pb2.ArgumentRef(position=place)))
    return sent


def _sent_value(
    request: execution_pb2.CallRequest, reference: values_pb2.ArgumentRef
) -> values_pb2.Value:
    if reference.WhichOneof("which") == "name":
        return request.kwargs[reference.name]
    return request.args[reference.position]


def _find_alias(
    declared: Argument | None, value: Any, sent: _Sent
) -> values_pb2.ArgumentRef | None:
    """Return the argument that a return is, if the schema permits that and it is the same."""
    sets = _alias_sets(declared)
    if sets:
        for argument, given, reference in sent:
            if sets & _alias_sets(argument) and is_same_memory(value, given):
                return reference
    return None


def _alias_sets(argument: Argument | None) -> frozenset[str]:
    alias = argument.alias_info if argument is not None else None
    if alias is None:
        return frozenset()
    return alias.before_set | (alias.contained.before_set if alias.contained else frozenset())
