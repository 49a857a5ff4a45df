"""Batching rules: an operator applied to a batch, in terms of operators of the level below.

A rule receives the unwrapped call and returns the result with its batch dimension:

    def rule(call):
        x, = call.args                      # batched values have the batch as first dimension
        return call.run(x), 0

It runs with the level popped, so operators that it calls are dispatched at the level below.

Mirrors ``functorch/PlumbingHelper.h`` and what is generated with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opdispatch.errors import TransformError
from opdispatch.functorch.aliased_return import original_of_write
from opdispatch.functorch.batched_tensor import (
    BatchedArray,
    is_tensor,
    make_batched,
    moved_to_front,
    tensor_over,
)
from opdispatch.functorch.batched_writes import check_writes
from opdispatch.functorch.dynamic_layer import DynamicLayer
from opdispatch.functorch.operator_rules import OperatorRules
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


class VmapInfo(NamedTuple):
    """Batch size and randomness of a ``vmap`` level, as passed to batching rules."""

    batch_size: int
    randomness: str


class BatchedCall:
    """A call of an operator, some of whose tensors are batched."""

    __slots__ = ("args", "dims", "info", "rules")

    def __init__(
        self, rules: OperatorRules, info: VmapInfo, args: list[Any], dims: list[Any]
    ) -> None:
        self.rules = rules
        self.info = info
        self.args = args
        """All arguments in schema order, with tensors of the level below."""
        self.dims = dims
        """Batch dimension of each argument: 0 if it is batched, None if not; a list for a list."""

    @property
    def op(self) -> OperatorHandle:
        """The operator."""
        return self.rules.op

    @property
    def name(self) -> str:
        """The operator's name, without its namespace and overload."""
        return str(self.op.name.name.rpartition("::")[2])

    @property
    def batch_size(self) -> int:
        """The number of samples."""
        return self.info.batch_size

    def ndim(self, place: int) -> int:
        """Return the number of dimensions of a sample of an argument."""
        value = self.args[place]
        array = value.array if type(value) is Tensor else value
        return len(array.shape) - (self.dims[place] is not None)

    def shape(self, place: int) -> tuple[int, ...]:
        """Return the shape of a sample of an argument."""
        value = self.args[place]
        shape = tuple((value.array if type(value) is Tensor else value).shape)
        return shape if self.dims[place] is None else shape[1:]

    def place(self, argument: str) -> int:
        """Return the index of an argument in the schema."""
        return self.rules.places[argument]

    def value(self, argument: str) -> Any:
        """Return the value of an argument."""
        return self.args[self.rules.places[argument]]

    def run(self, args: Sequence[Any] | None = None, **changes: Any) -> Any:
        """Call the operator with all arguments in ``args``, replaced by name where ``changes`` has
        them."""
        args = self.args if args is None else args
        if changes:
            args = list(args)
            for name, value in changes.items():
                args[self.rules.places[name]] = value
        rules = self.rules
        return rules.call(args) if rules.has_keywords else rules.op(*args)


Rule: TypeAlias = Callable[[BatchedCall], tuple[Any, Any]]
"""A function that returns results and their batch dimension, None for unbatched results. For
several results, or a list, this is one dimension for all of them or a list of dimensions."""


def run_rule(rule: Rule, call: BatchedCall, layer: DynamicLayer, given: Sequence[Any]) -> Any:
    """Apply a rule to a call, and wrap its results for the level of the batch.

    ``given`` are the arguments at the level of the batch; the level below is current. Raises
    TransformError if the rule returns anything else than results and dimensions, and if the call
    writes batched values to an unbatched tensor.
    """
    rules, info, values = call.rules, call.info, call.args
    if rules.signature.written:
        check_writes(rules.op, call.dims)
    result, out_dims = rule(call)
    if rules.makes_one and type(result) is Tensor and type(out_dims) is int and not out_dims:
        # Fast path for most calls, equivalent to the general case below.
        shape = result.array.shape
        if shape and shape[0] == info.batch_size:
            return tensor_over(BatchedArray(layer, result))
    op, returns = rules.op, rules.schema.returns
    results = rules.signature.box_returns(result)
    if len(results) == 1:
        out_dims = [out_dims]
    elif not isinstance(out_dims, list | tuple):
        out_dims = [out_dims] * len(results)
    if len(out_dims) != len(results):
        raise _wrong(op, f"{len(out_dims)} dimensions for {len(results)} results")
    return rules.signature.unbox_returns(
        [
            original_of_write(rules.schema, place, each, values, given)
            if returned.alias_info is not None and returned.alias_info.is_write
            else _moved(op, layer, info, each, dim)
            for place, (each, dim, returned) in enumerate(
                zip(results, out_dims, returns, strict=True)
            )
        ]
    )


def _moved(op: OperatorHandle, layer: DynamicLayer, info: VmapInfo, result: Any, dim: Any) -> Any:
    """Wrap a result for the level, with its batch dimension moved to the front."""
    if isinstance(result, list):
        each_dim = dim if isinstance(dim, list | tuple) else [dim] * len(result)
        if len(each_dim) != len(result):
            raise _wrong(op, f"{len(each_dim)} dimensions for a list of {len(result)} tensors")
        return [_moved(op, layer, info, *pair) for pair in zip(result, each_dim, strict=True)]
    if dim is None or result is None:
        return result
    if type(result) is not Tensor and not is_tensor(result):
        raise _wrong(op, f"the dimension {dim!r} for {result!r}, which is not a tensor")
    ndim = len(result.shape)
    if type(dim) is not int or not -ndim <= dim < ndim:
        raise _wrong(op, f"the dimension {dim!r} for a result of shape {list(result.shape)}")
    if result.shape[dim] != info.batch_size:
        raise _wrong(
            op,
            f"a result of shape {list(result.shape)} with dimension {dim} for a batch of "
            f"{info.batch_size}",
        )
    return make_batched(layer, moved_to_front(result, dim % ndim))


def _wrong(op: OperatorHandle, what: str) -> TransformError:
    return TransformError(f"the batching rule of {op.name} returned {what}", operator=str(op.name))
