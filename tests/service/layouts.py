"""Kernel libraries for tensors of each layout, and such tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from opdispatch import Tensor, nested_tensor, quantize_per_tensor
from opdispatch.arrays import find_layout

LIBRARY = """\
import numpy as np
import scipy.sparse
from opdispatch import Library, NestedArray, QuantizedArray, Tensor, fallthrough_kernel

KEYS = ("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU")
lib = Library("lay", "DEF")
lib.define("which(Tensor x) -> str")
lib.define("same(Tensor x) -> Tensor")
lib.define("both(Tensor x, Tensor[] more) -> (Tensor, Tensor[])")
lib.define("double(Tensor x) -> Tensor")
lib.define("dense(Tensor x) -> Tensor")
lib.define("zero_(Tensor(a!) x) -> Tensor(a!)")
lib.define("kinds(Tensor x) -> str")
lib.define("wrong(Tensor x) -> Tensor")
lib.define("eye(int n) -> Tensor")
for key in KEYS:
    lib.impl("which", lambda x, key=key: key, key)
    lib.impl("same", lambda x: x, key)
    lib.impl("both", lambda x, more: (x, more), key)
    lib.impl("zero_", lambda x: x, key)
    lib.impl("kinds", lambda x: f"{type(x).__name__} {getattr(x, 'requires_grad', '')}", key)
for name in ("which", "same", "kinds", "zero_"):
    lib.impl(name, fallthrough_kernel, "AutogradNestedTensor")
lib.impl("dense", lambda x: np.asarray(x), "CPU")
lib.impl("dense", lambda x: x.toarray(), "SparseCPU")
lib.impl("double", lambda x: x * 2, "SparseCPU")
lib.impl("double", lambda x: x * 2, "SparseCsrCPU")
lib.impl("double", lambda x: QuantizedArray(x.int_repr, x.scale * 2, x.zero_point), "QuantizedCPU")
lib.impl("double", lambda x: NestedArray(x.values * 2, x.offsets), "NestedTensorCPU")
def wrong(x):
    made = scipy.sparse.csr_array(np.eye(3))
    made.indptr = made.indptr[:-1]
    return made
lib.impl("wrong", wrong, "CPU")
lib.define("vector(Tensor x) -> Tensor")
lib.impl("vector", lambda x: scipy.sparse.csr_array(x), "CPU")
lib.define("stray(Tensor x, bool by_rows) -> Tensor")
def stray(x, by_rows):
    made = (scipy.sparse.csr_array if by_rows else scipy.sparse.coo_array)(np.eye(3))
    (made.indices if by_rows else made.coords[0])[0] = 50
    return made
lib.impl("stray", stray, "CPU")
lib.impl("eye", lambda n: Tensor(scipy.sparse.coo_array(np.eye(n)), requires_grad=True),
         "CompositeImplicitAutograd")
"""
OTHER = """\
from opdispatch import Library, ops
lib = Library("far", "DEF")
lib.define("twice(Tensor x) -> Tensor")
for key in ("SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU"):
    lib.impl("twice", lambda x: ops.lay.double(ops.lay.double(x)), key)
"""
X = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
BIG = np.random.default_rng(0).integers(1, 9, (520, 520)) / 2  # parts of more than a megabyte
KEYS = {
    "sparse_coo": "SparseCPU",
    "sparse_csr": "SparseCsrCPU",
    "quantized": "QuantizedCPU",
    "nested": "NestedTensorCPU",
}


def arrays_of(dense: np.ndarray) -> dict[str, Any]:
    return {
        "sparse_coo": scipy.sparse.coo_array(dense),
        "sparse_csr": scipy.sparse.csr_array(dense),
        "quantized": quantize_per_tensor(dense, 0.5, 10, "qint32").array,
        "nested": nested_tensor([dense, dense[:1]]).array,
    }


SMALL, LARGE = arrays_of(X), arrays_of(BIG)


def parts_of(value: object) -> list[object]:
    array = value.array if isinstance(value, Tensor) else value
    layout = find_layout(type(array))
    assert layout is not None
    return [layout.name, layout.facts(array), *layout.parts(array)]


def same(one: object, other: object) -> None:
    (name, facts, *mine), (other_name, other_facts, *theirs) = parts_of(one), parts_of(other)
    assert (name, facts) == (other_name, other_facts)
    for part, other_part in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(part, other_part)
