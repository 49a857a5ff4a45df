"""Batching rules of the functional variants of views and writes, which functionalize calls."""

from __future__ import annotations

from typing import Any

from opdispatch.autograd.view_nodes import with_room_for
from opdispatch.functorch.batching_rule import BatchedCall, Rule
from opdispatch.functorch.operator_rules import OperatorRules
from opdispatch.native.array.batching.alignment import batched
from opdispatch.native.array.batching.elementwise import ELEMENTWISE
from opdispatch.native.array.batching.indexing import INDEXING
from opdispatch.native.array.batching.manipulation import MANIPULATION
from opdispatch.native.array.batching.products import PRODUCTS
from opdispatch.native.array.derivatives.namespace import OPERATORS, xp
from opdispatch.native.array.operators.functional_variants import VIEWS

_OF_VIEWS = ELEMENTWISE | MANIPULATION | PRODUCTS | INDEXING


def _setitem(call: BatchedCall) -> tuple[Any, Any]:
    """Batch ``setitem``: apply the rule of ``setitem_`` to a copy of the target.

    The copy is batched if any argument is.
    """
    x, overload = call.args[0], call.op.name.overload_name
    copied = xp.astype(batched(x, call.dims[0], call.batch_size), x.dtype)
    whole = with_room_for(copied, *call.args[4], *call.args[5:])
    write = getattr(OPERATORS.setitem_, overload)
    args, dims = [whole, *call.args[1:]], [0, *call.dims[1:]]
    return INDEXING[f"setitem_.{overload}"](
        BatchedCall(OperatorRules(write), call.info, args, dims)
    )


def _alike(call: BatchedCall) -> tuple[Any, Any]:
    """Batch a function of two tensors whose samples have the same shape."""
    pairs = zip(call.args, call.dims, strict=True)
    return call.run([batched(x, dim, call.batch_size) for x, dim in pairs]), 0


FUNCTIONAL_VARIANTS: dict[str, Rule] = {
    **{f"{view}_copy": _OF_VIEWS[view] for view in VIEWS},
    **dict.fromkeys(("setitem.Scalar", "setitem.Tensor"), _setitem),
    **dict.fromkeys(("copy", "copy_", "real_scatter", "imag_scatter"), _alike),
}
