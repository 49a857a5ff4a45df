"""Derivative formulas of the operators of the library ``array``, in one table.

namespace       the namespace and small functions that formulas use
elementwise     elementwise functions
reductions      sums, extrema, cumulative functions, sorting
manipulation    reshaping, splitting, joining
scatter         gradients of gathers, whose indices may repeat
indexing        indexing, assignment, ``take`` and ``take_along_axis``
products        products of vectors, matrices and tensors
linalg          inverses, determinants, powers, diagonals
decompositions  matrix decompositions
norms           vector and matrix norms
fft             Fourier transforms
no_derivative   operators without a derivative
grad_operator   ``array::grad``, the backward pass as an operator
"""

from __future__ import annotations

from opdispatch.functionalities.adinplace_or_view import make_view_kernel, make_write_kernel
from opdispatch.functionalities.derivative import RESULT, Formulas, Forward
from opdispatch.functionalities.derivative_kernel import make_derivative_kernel
from opdispatch.functionalities.forward_derivative import make_forward_kernel
from opdispatch.library.library import Library
from opdispatch.native.array.derivatives.decompositions import DECOMPOSITIONS
from opdispatch.native.array.derivatives.elementwise import BINARY, CHOICES, UNARY
from opdispatch.native.array.derivatives.fft import FFT
from opdispatch.native.array.derivatives.grad_operator import register_grad
from opdispatch.native.array.derivatives.indexing import INDEXING
from opdispatch.native.array.derivatives.linalg import LINALG
from opdispatch.native.array.derivatives.manipulation import MANIPULATION
from opdispatch.native.array.derivatives.no_derivative import CONSTANT
from opdispatch.native.array.derivatives.norms import NORMS
from opdispatch.native.array.derivatives.products import PRODUCTS
from opdispatch.native.array.derivatives.reductions import REDUCTIONS
from opdispatch.native.array.operators import functional_variants
from opdispatch.native.array.operators.math_bits import MATH_BIT_VIEWS
from opdispatch.schema.function_schema import FunctionSchema

DERIVATIVES: dict[str, Formulas] = {
    **UNARY,
    **BINARY,
    **CHOICES,
    **REDUCTIONS,
    **MANIPULATION,
    **INDEXING,
    **PRODUCTS,
    **LINALG,
    **DECOMPOSITIONS,
    **NORMS,
    **FFT,
}
"""The formulas of each operator overload: one for each differentiable argument."""

WRITES = ("copy_", "setitem_.Scalar", "setitem_.Tensor")
VIEWS = (*functional_variants.VIEWS, "astype")
"""Operators that return a view of their first argument; ``reshape`` and ``astype`` if possible."""
DERIVATIVES |= {f"{name}_copy": DERIVATIVES[name] for name in functional_variants.VIEWS}


_NO_TANGENTS: Formulas = {RESULT: Forward.CONSTANT}


def register_derivatives(library: Library) -> None:
    """Register all formulas with the library that defines the operators, in one publication."""
    dispatcher = library.dispatcher

    def schema_of(name: str) -> FunctionSchema:
        return dispatcher.get_schema(f"{library.ns}::{name}").schema

    with dispatcher.transaction():
        register_grad(library)
        for name, formulas in [*DERIVATIVES.items(), *((name, {}) for name in CONSTANT)]:
            library.impl(name, make_derivative_kernel(schema_of(name), formulas), "Autograd")
            if name in CONSTANT or RESULT in formulas:
                kernel = make_forward_kernel(schema_of(name), formulas or _NO_TANGENTS)
                library.impl(name, kernel, "FuncTorchGradWrapper")
        for name in WRITES:
            library.impl(name, make_write_kernel(schema_of(name)), "ADInplaceOrView")
        for name in (*VIEWS, *MATH_BIT_VIEWS):
            find = dispatcher.finder_of(f"{library.ns}::{name}")
            library.impl(name, make_view_kernel(schema_of(name), find), "ADInplaceOrView")
