"""Reject in-place writes of batched values to a tensor that is not batched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opdispatch.errors import TransformError

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


def check_writes(op: OperatorHandle, dims: list[Any]) -> None:
    """Raise TransformError for a call that writes batched values to an unbatched argument."""
    for argument, dim in zip(op.call_signature.schema.arguments, dims, strict=True):
        if argument.is_write and (None in dim if isinstance(dim, list) else dim is None):
            raise TransformError(
                f"{op.name} writes to its argument {argument.name!r}, which vmap does not batch, "
                "while other arguments are batched: it cannot hold the values of all samples",
                hint="use an out-of-place operator, or create the written tensor from a batched "
                "one, for instance with zeros_like",
                operator=str(op.name),
            )
