"""Call an operator for each sample of a batch in a loop, where it has no batching rule.

Mirrors ``functorch/BatchedFallback.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.errors import TransformError
from opdispatch.functorch.aliased_return import original_of_write
from opdispatch.functorch.batched_tensor import is_tensor, make_batched
from opdispatch.functorch.batched_writes import check_writes
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.local_state.lazy_imports import array_namespace

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


class LoopResult:
    """One return of the operator, collected over all samples."""

    def __init__(self, value: Any, *, is_stacked: bool) -> None:
        self._value = value
        self._is_stacked = is_stacked

    def wrapped(self, layer: DynamicLayer) -> Any:
        """Return the value as the level's function sees it."""
        if not self._is_stacked:
            return self._value
        if isinstance(self._value, list):
            return [make_batched(layer, each) for each in self._value]
        return make_batched(layer, self._value)


def call_for_each(
    op: OperatorHandle,
    batch_size: int,
    values: list[Any],
    dims: list[Any],
    given: list[Any],
    *,
    always: bool = False,
) -> list[LoopResult]:
    """Call an operator for each sample and return its returns.

    ``given`` are the arguments at the level of the batch, ``values`` the same unwrapped for the
    level below, which is current, and ``dims`` their hidden dimensions. Raises TransformError if
    the batch is empty, if the results of samples differ in shape, if results that are not tensors
    differ, or if the operator writes to an unbatched argument. With ``always``, operators that
    write to nothing are called even if no argument is batched.
    """
    if not always or op.call_signature.schema.is_mutable:
        check_writes(op, dims)
    if batch_size == 0:
        raise TransformError(
            f"{op.name} has no batching rule and cannot be called in a loop over an empty "
            "batch: the shapes of its results are unknown",
            operator=str(op.name),
        )
    schema = op.call_signature.schema
    samples: list[list[Any]] = []
    for place in range(batch_size):
        stack = [_sample(value, dim, place) for value, dim in zip(values, dims, strict=True)]
        op.call_boxed(stack)
        samples.append(stack)
    results = []
    for place, returned in enumerate(schema.returns):
        column = [sample[place] for sample in samples]
        if returned.alias_info is not None and returned.alias_info.is_write:
            original = original_of_write(schema, place, None, values, given)
            results.append(LoopResult(original, is_stacked=False))
        else:
            results.append(_combined(op, column))
    return results


def _sample(value: Any, dim: Any, place: int) -> Any:
    if isinstance(dim, list):
        return [_sample(each, one, place) for each, one in zip(value, dim, strict=True)]
    return value if dim is None else value[place]


def _combined(op: OperatorHandle, column: list[Any]) -> LoopResult:
    first = column[0]
    if isinstance(first, list) and all(map(is_tensor, first)):
        if any(len(each) != len(first) for each in column):
            raise _differing(op, "lists of tensors of different lengths")
        rows = [_stacked(op, [each[n] for each in column]) for n in range(len(first))]
        return LoopResult(rows, is_stacked=True)
    if is_tensor(first):
        return LoopResult(_stacked(op, column), is_stacked=True)
    if any(each != first for each in column):
        raise _differing(op, f"different values that are not tensors, such as {first!r},")
    return LoopResult(first, is_stacked=False)


def _stacked(op: OperatorHandle, tensors: list[Any]) -> Any:
    shapes = sorted({tuple(each.shape) for each in tensors})
    if len(shapes) > 1:
        raise _differing(op, f"tensors of shapes {list(shapes[0])} and {list(shapes[1])}")
    return array_namespace().stack(tensors)


def _differing(op: OperatorHandle, what: str) -> TransformError:
    return TransformError(
        f"{op.name} returns {what} for samples of one batch, which vmap cannot stack",
        operator=str(op.name),
    )
