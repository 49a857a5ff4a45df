"""Functional variants: which operator runs in place of one that writes to its arguments.

The functional variant takes the same arguments except ``out=`` ones. It returns the results that
are not aliases of written arguments, followed by the new values of the written arguments. It is the
first of these operators, named as in PyTorch, whose schema fits:

    ====================  =======================================
    ``ns::f_.overload``   ``ns::f.overload``
    ``ns::f.out``         any overload of ``ns::f``
    ``ns::f.overload``    ``ns::f_functional.overload``
    ====================  =======================================

An operator without a functional variant is called with copies of the arguments that it writes to,
like ``auto_functionalized`` in ``torch/_higher_order_ops``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import copy_of
from opdispatch.arrays.memory_overlap import INTERNAL_OVERLAP, has_internal_overlap
from opdispatch.errors import ArgumentError
from opdispatch.functorch.functionalization import FunctionalTensor, Level
from opdispatch.local_state.lazy_imports import array_operators
from opdispatch.schema.function_schema import Argument, FunctionSchema, OperatorName
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.dispatcher import Dispatcher
    from opdispatch.dispatch.operator_handle import OperatorHandle


def call_without_writes(op: OperatorHandle, level: Level, stack: list[Any]) -> None:
    """Call the functional variant of ``op``: put results on ``stack``, update written tensors.

    Raises ArgumentError if elements of a written argument overlap in memory, or if its new value
    has another shape.
    """
    schema = op.call_signature.schema
    for place, argument in enumerate(schema.arguments):
        if argument.is_write:
            stack[place] = _adopted(level, stack[place])
            _check_no_overlap(op, argument, stack[place])
    written = [stack[place] for place, a in enumerate(schema.arguments) if a.is_write]
    values = [level.value_of(value) for value in stack]
    functional = find_functional(op)
    with level.below():
        if functional is not None:
            is_out = [a.is_out for a in schema.arguments]
            returns = [v for v, skipped in zip(values, is_out, strict=True) if not skipped]
            functional.call_boxed(returns)
            made = returns[len(returns) - len(written) :]
        else:
            copies: dict[int, Any] = {}
            for place, argument in enumerate(schema.arguments):
                if argument.is_write:
                    values[place] = _copied(stack[place], values[place], copies)
            made = [v for v, a in zip(values, schema.arguments, strict=True) if a.is_write]
            returns = values
            op.call_boxed(returns)
            returns = [r for r, s in zip(returns, schema.returns, strict=True) if not _is_write(s)]
        pairs = list(_pairs(written, made))
        converted = [_fitting(op, tensor, value) for tensor, value in pairs]
    for (tensor, _), value in zip(pairs, converted, strict=True):
        tensor.write(value)
    fresh = iter(returns)
    arguments = schema.arguments
    given = dict(zip([a.name for a in arguments], stack, strict=True))
    stack[:] = [
        given[_argument_of(schema, returned).name]
        if _is_write(returned)
        else level.make(next(fresh))
        for returned in schema.returns
    ]


def find_functional(op: OperatorHandle) -> OperatorHandle | None:
    """Return the functional variant of an operator that writes, or None without one."""
    schema = op.call_signature.schema
    wanted = functional_schema(schema)
    name, overload = schema.name.name, schema.name.overload_name
    dispatcher: Dispatcher = op.dispatcher
    candidates = []
    if name.endswith("_") and not name.endswith("__"):
        candidates.append(OperatorName(name[:-1], overload))
    if any(argument.is_out for argument in schema.arguments):
        candidates += dispatcher.overloads(name)
    candidates.append(OperatorName(f"{name}_functional", overload))
    for candidate in candidates:
        found = dispatcher.find_schema(candidate)
        if found is None or not _has_no_alias(found.schema):
            continue
        if found.schema.find_differences(wanted) is None:
            return found
    return None


def functional_schema(schema: FunctionSchema) -> FunctionSchema:
    """Return the schema of the functional variant of an operator that writes."""
    arguments = tuple(replace(a, alias_info=None) for a in schema.arguments if not a.is_out)
    fresh = [replace(r, alias_info=None) for r in schema.returns if not _is_write(r)]
    made = [Argument("", a.type) for a in schema.arguments if a.is_write]
    return replace(schema, arguments=arguments, returns=(*fresh, *made))


def _has_no_alias(schema: FunctionSchema) -> bool:
    return all(each.alias_info is None for each in (*schema.arguments, *schema.returns))


def _is_write(returned: Argument) -> bool:
    return returned.alias_info is not None and returned.alias_info.is_write


def _argument_of(schema: FunctionSchema, returned: Argument) -> Argument:
    """Return the written argument that ``returned`` aliases.

    Raises ArgumentError if there is none.
    """
    for argument in schema.arguments:
        if argument.is_write and _sets_of(argument) & _sets_of(returned):
            return argument
    raise ArgumentError(
        f"{schema.name} returns what it writes to, and its annotations do not say which argument "
        f"that is: {schema}",
        operator=str(schema.name),
    )


def _sets_of(argument: Argument) -> frozenset[str]:
    alias = argument.alias_info
    assert alias is not None, "it is written to"
    while not alias.before_set and alias.contained is not None:
        alias = alias.contained
    return alias.before_set


def _adopted(level: Level, value: Any) -> Any:
    if isinstance(value, list):
        return [_adopted(level, each) for each in value]
    return None if value is None else level.adopt(value)


def _check_no_overlap(op: OperatorHandle, argument: Argument, value: Any) -> None:
    """Raise ArgumentError if elements share memory, as in a result of ``broadcast_to``."""
    if isinstance(value, list):
        for each in value:
            _check_no_overlap(op, argument, each)
        return
    strided = value.strided() if isinstance(value, FunctionalTensor) else None
    if strided is not None and has_internal_overlap(strided.shape, strided.strides):
        raise ArgumentError(
            f"{op.name} writes to its argument {argument.name!r}, of which {INTERNAL_OVERLAP}",
            hint="write to a copy of it",
            operator=str(op.name),
            argument=argument.name,
        )


def _pairs(written: Sequence[Any], made: Sequence[Any]) -> Iterator[tuple[FunctionalTensor, Any]]:
    """Yield each tensor that was written to, with its new value."""
    for tensor, value in zip(written, made, strict=True):
        if isinstance(tensor, list):
            yield from _pairs(tensor, value)
        elif tensor is not None:
            yield tensor, value


def _fitting(op: OperatorHandle, tensor: FunctionalTensor, value: Any) -> Any:
    """Return ``value`` with the dtype of the tensor that it replaces.

    Raises ArgumentError unless their shapes are equal.
    """
    if tuple(value.shape) != tuple(tensor.shape):
        raise ArgumentError(
            f"{op.name} was to write to a tensor of shape {list(tensor.shape)}, and its functional "
            f"counterpart has returned one of shape {list(value.shape)}",
            operator=str(op.name),
        )
    if value.dtype != tensor.dtype:
        return array_operators().astype.default(value, tensor.dtype)
    return value


def _copied(tensor: Any, value: Any, copies: dict[int, Any]) -> Any:
    """Return copies of the values to write to. A tensor that is passed twice is copied once.

    ``copies`` maps the id of a tensor to its copy, and is updated.
    """
    if isinstance(value, list):
        return [_copied(t, v, copies) for t, v in zip(tensor, value, strict=True)]
    if value is None:
        return None
    if id(tensor) not in copies:
        copies[id(tensor)] = copied(value)
    return copies[id(tensor)]


def copied(value: Any) -> Any:
    """Return a copy of a tensor, or of a plain array; the copy of a tensor keeps its history."""
    if isinstance(value, list):
        return [copied(each) for each in value]
    if isinstance(value, FunctionalTensor):  # of an outer level
        return FunctionalTensor.of(copied(value.sync()), value.level)
    if not isinstance(value, Tensor):
        return copy_of(value)
    return +value if value.requires_grad else Tensor(copy_of(value.array))
