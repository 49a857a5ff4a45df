"""Batching rules of elementwise operators."""

from __future__ import annotations

from typing import Any

from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.native.array.batching.alignment import aligned
from opdispatch.native.array.operators import functions
from opdispatch.native.array.operators.math_bits import MATH_BIT_VIEWS
from opdispatch.tensors.tensor import Tensor


def unary(call: BatchedCall) -> tuple[Any, Any]:
    """Batch an elementwise function of one tensor."""
    return call.run(), 0


def broadcasting(call: BatchedCall) -> tuple[Any, Any]:
    """Batch an elementwise function of several tensors, broadcasting their samples."""
    ndims, places = [], []
    for place, (value, dim) in enumerate(zip(call.args, call.dims, strict=True)):
        if type(value) is Tensor or is_tensor(value):
            places.append(place)
            ndims.append((value.array if type(value) is Tensor else value).ndim - (dim is not None))
    if min(ndims) == max(ndims):
        return call.run(), 0
    return call.run(aligned(call, places)), 0


ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys((*functions.UNARY, *MATH_BIT_VIEWS), unary),
    **{f"{name}.Tensor": broadcasting for name in functions.BINARY},
    **{
        f"{name}.{which}": unary for name in functions.BINARY for which in ("Scalar", "ScalarFirst")
    },
    "astype": unary,
    "clip": unary,
    **dict.fromkeys(("clip.Tensor", "clip.ScalarMin", "clip.ScalarMax"), broadcasting),
    **dict.fromkeys(("where", "where.ScalarSelf", "where.ScalarOther"), broadcasting),
    **dict.fromkeys(("empty_like", "full_like", "ones_like", "zeros_like"), unary),
}
