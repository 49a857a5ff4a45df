"""Checks that an operator's mutation and aliasing are exactly those that its schema declares.

Mirrors ``torch/_subclasses/schema_check_mode.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from opdispatch.errors import OpCheckError
from opdispatch.local_state.grad_mode import no_grad
from opdispatch.optests.sample import Sample, content_of, share_memory, tensors_in
from opdispatch.schema.function_schema import AliasInfo, Argument
from opdispatch.tensors.tensor import Tensor

_ANYTHING = "*"


def check_schema(sample: Sample) -> None:
    """Check the operator's mutation and aliasing against its schema.

    Views of disjoint elements of one array do not count as aliases; in PyTorch, tensors that share
    a storage do. Raises OpCheckError, and the operator's own errors.
    """
    args, kwargs = sample.copies()
    op = sample.op
    stack = op.bind(args, kwargs)
    before = [[content_of(each) for each in tensors_in(value)] for value in stack]
    with no_grad(), sample.same_random_numbers():
        results = op.signature.box_returns(op(*args, **kwargs))
    after = [[content_of(each) for each in tensors_in(value)] for value in stack]
    arguments, returns = op.schema.arguments, op.schema.returns
    for place, argument in enumerate(arguments):
        if before[place] != after[place] and not _is_written(argument.alias_info):
            raise OpCheckError(
                f"{op.name} wrote to its argument {argument.name!r}, and its schema does not say "
                f"so: {op.schema}",
                hint=f"write Tensor(a!) {argument.name}, or copy it first",
                operator=str(op.name),
            )
    for number, (returned, result) in enumerate(zip(returns, results, strict=True)):
        for argument, value in zip(arguments, stack, strict=True):
            _check_pair(sample, argument, value, number, returned, result)
    for first, second in combinations(range(len(returns)), 2):
        if share_memory(results[first], results[second]) and not _may_alias(
            returns[first].alias_info, returns[second].alias_info
        ):
            raise OpCheckError(
                f"returns {first} and {second} of {op.name} share memory, and its schema does not "
                f"say so: {op.schema}",
                hint="return a copy",
                operator=str(op.name),
            )


def _check_pair(
    sample: Sample, argument: Argument, value: Any, number: int, returned: Argument, result: Any
) -> None:
    op = sample.op
    facts = {"operator": str(op.name), "argument": argument.name}
    written = _is_written(argument.alias_info)
    if isinstance(value, Tensor) and value is result and not written:
        raise OpCheckError(
            f"return {number} of {op.name} is its argument {argument.name!r} itself, which only "
            f"operators that write to it may return: {op.schema}",
            hint="return a copy, or a view",
            **facts,
        )
    may_alias = _may_alias(argument.alias_info, returned.alias_info)
    shared = share_memory(value, result)
    if shared and not may_alias:
        raise OpCheckError(
            f"return {number} of {op.name} shares memory with its argument {argument.name!r}, and "
            f"its schema does not say so: {op.schema}",
            hint="return a copy",
            **facts,
        )
    if written and may_alias and not shared and _has_elements([value]):
        raise OpCheckError(
            f"return {number} of {op.name} is its argument {argument.name!r} by its schema, and "
            f"shares no memory with it: {op.schema}",
            hint="return the written argument",
            **facts,
        )


def _has_elements(values: Sequence[Any]) -> bool:
    return any(0 not in each.shape for each in tensors_in(values))


def _is_written(alias: AliasInfo | None) -> bool:
    return alias is not None and (alias.is_write or _is_written(alias.contained))


def _may_alias(one: AliasInfo | None, other: AliasInfo | None) -> bool:
    first, second = _sets_of(one), _sets_of(other)
    return not first.isdisjoint(second) or _ANYTHING in first | second


def _sets_of(alias: AliasInfo | None) -> frozenset[str]:
    if alias is None:
        return frozenset()
    return alias.before_set | alias.after_set | _sets_of(alias.contained)
