"""Kernels for FuncTorchBatched out of batching rules.

A rule is given the call below the level of the batch, and says where the batch is in its results:

    def rule(call):
        x, = call.args                      # batched values have the batch as first dimension
        return call.run(x), 0

It runs with the level taken off, so that what it calls is served by the level below.

Mirrors ``functorch/PlumbingHelper.h`` and what is generated with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import TransformError
from opdispatch.functorch.batch_loop import check_writes
from opdispatch.functorch.batched_tensor import (
    BatchedArray,
    is_tensor,
    make_batched,
    moved_to_front,
    tensor_over,
    unwrap_all,
)
from opdispatch.functorch.dynamic_layer import TOP, Frame, Lowered, call_without
from opdispatch.functorch.vmap_layer import VmapInfo, VmapLayer
from opdispatch.functorch.written import original_of_write
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import bits_of_key
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BATCHED = bits_of_key(DispatchKey.FuncTorchBatched)


class BatchedCall:
    """A call of an operator, some of whose tensors are batched."""

    __slots__ = ("args", "dims", "info", "op")

    def __init__(
        self, op: OperatorHandle, info: VmapInfo, args: list[Any], dims: list[Any]
    ) -> None:
        self.op = op
        self.info = info
        self.args = args
        """All arguments, in the order of the schema; the tensors are those below."""
        self.dims = dims
        """For each, 0 if it is batched, None if not; for a list, a list of these."""

    @property
    def name(self) -> str:
        """The operator's name, without its namespace and overload."""
        return str(self.op.name.name.rpartition("::")[2])

    @property
    def batch_size(self) -> int:
        """The number of samples."""
        return self.info.batch_size

    def ndim(self, place: int) -> int:
        """How many dimensions a sample of an argument has."""
        return int(self.args[place].ndim) - (self.dims[place] is not None)

    def shape(self, place: int) -> tuple[int, ...]:
        """The shape of a sample of an argument."""
        shape = tuple(self.args[place].shape)
        return shape if self.dims[place] is None else shape[1:]

    def place(self, argument: str) -> int:
        """Where an argument is."""
        arguments = self.op.call_signature.schema.arguments
        return next(place for place, each in enumerate(arguments) if each.name == argument)

    def value(self, argument: str) -> Any:
        """An argument."""
        return self.args[self.place(argument)]

    def run(self, args: Sequence[Any] | None = None, **changes: Any) -> Any:
        """Call the operator with these arguments, all of them, but for changes by name."""
        args = self.args if args is None else args
        if changes:
            args = list(args)
            for name, value in changes.items():
                args[self.place(name)] = value
        signature = self.op.call_signature
        if not signature.keyword_only_names:
            return self.op(*args)
        positional, named = signature.split(args)
        return self.op(*positional, **named)


Rule: TypeAlias = Callable[[BatchedCall], tuple[Any, Any]]
"""Returns what the operator does, and the dimension of the batch in it (None: there is none); of
several results or a list, one for all, or a list of them."""


def batch_frame(op: OperatorHandle) -> Frame:
    """The frame of the batch that a call is in. Raises TransformError if it is in none."""
    frame = TOP.get()
    if frame is None or not isinstance(frame.layer, VmapLayer):
        raise TransformError(
            f"{op.name} was called with a batched tensor outside of the vmap that has made it",
            hint="return it from the function, and do not keep it elsewhere",
            operator=str(op.name),
        )
    return frame


def make_batching_kernel(rule: Rule) -> KernelFunction:
    """A kernel for FuncTorchBatched of any operator that the rule is for."""

    def call_batched(op: OperatorHandle, keys: Any, stack: list[Any]) -> None:
        frame = batch_frame(op)
        call_by_rule(op, frame, stack, rule)

    return KernelFunction.from_boxed(call_batched)


def call_by_rule(op: OperatorHandle, frame: Frame, stack: list[Any], rule: Rule) -> None:
    """Have a rule do the call, if one of the tensors is batched at the frame's level."""
    layer = frame.layer
    assert isinstance(layer, VmapLayer)
    values, dims, found = unwrap_all(stack, layer)
    if not found:
        call_without(_BATCHED, op, stack)
        return
    schema = op.call_signature.schema
    if may_write := op.may_write:
        check_writes(op, dims)
    with Lowered(frame):
        result, out_dims = rule(BatchedCall(op, layer.info, values, dims))
        if type(result) is Tensor and type(out_dims) is int and not out_dims and not may_write:
            # By far most calls: what follows comes to the same.
            shape = result.array.shape
            if len(schema.returns) == 1 and shape and shape[0] == layer.info.batch_size:
                stack[:] = [tensor_over(BatchedArray(layer, result))]
                return
        results = op.call_signature.box_returns(result)
        if len(results) == 1:
            out_dims = [out_dims]
        elif not isinstance(out_dims, list | tuple):
            out_dims = [out_dims] * len(results)
        if len(out_dims) != len(results):
            raise _wrong(op, f"{len(out_dims)} dimensions for {len(results)} results")
        fronts = [
            each
            if returned.alias_info is not None and returned.alias_info.is_write
            else _moved(op, layer, each, dim)
            for each, dim, returned in zip(results, out_dims, schema.returns, strict=True)
        ]
    for place, returned in enumerate(schema.returns):
        if returned.alias_info is not None and returned.alias_info.is_write:
            fronts[place] = original_of_write(schema, place, fronts[place], values, stack)
    stack[:] = fronts


def _moved(op: OperatorHandle, layer: VmapLayer, result: Any, dim: Any) -> Any:
    """A result as the level's function sees it."""
    if isinstance(result, list):
        each_dim = dim if isinstance(dim, list | tuple) else [dim] * len(result)
        if len(each_dim) != len(result):
            raise _wrong(op, f"{len(each_dim)} dimensions for a list of {len(result)} tensors")
        return [_moved(op, layer, *pair) for pair in zip(result, each_dim, strict=True)]
    if dim is None or result is None:
        return result
    if type(result) is not Tensor and not is_tensor(result):
        raise _wrong(op, f"the dimension {dim!r} for {result!r}, which is no tensor")
    ndim = len(result.shape)
    if type(dim) is not int or not -ndim <= dim < ndim:
        raise _wrong(op, f"the dimension {dim!r} for a result of shape {list(result.shape)}")
    if result.shape[dim] != layer.info.batch_size:
        raise _wrong(
            op,
            f"a result of shape {list(result.shape)} with dimension {dim} for a batch of "
            f"{layer.info.batch_size}",
        )
    return make_batched(layer, moved_to_front(result, dim % ndim))


def _wrong(op: OperatorHandle, what: str) -> TransformError:
    return TransformError(f"the batching rule of {op.name} returned {what}", operator=str(op.name))
