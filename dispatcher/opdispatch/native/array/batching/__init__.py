"""``vmap`` batching rules for the operators of the library ``array``, in one table.

alignment            align samples of different numbers of dimensions
elementwise          elementwise functions, and ``zeros_like`` and the like
reductions           sums, extrema, cumulative functions, sorting
manipulation         reshaping, splitting, joining; results with data-dependent shapes
products             products of vectors, matrices and tensors; linear algebra
fft                  Fourier transforms
indexing             indexing and assignment
functional_variants  functional variants of views and writes

Factory functions need no rule: all samples have the same result.
"""

from __future__ import annotations

from opdispatch.functionalities.batched_fallback import make_batching_kernel
from opdispatch.functorch.batching_rule import Rule
from opdispatch.library.library import Library
from opdispatch.native.array.batching.elementwise import ELEMENTWISE
from opdispatch.native.array.batching.fft import FFT
from opdispatch.native.array.batching.functional_variants import FUNCTIONAL_VARIANTS
from opdispatch.native.array.batching.indexing import INDEXING
from opdispatch.native.array.batching.manipulation import BY_ELEMENTS, MANIPULATION, meshgrid
from opdispatch.native.array.batching.products import PRODUCTS
from opdispatch.native.array.batching.reductions import REDUCTIONS

RULES: dict[str, Rule] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **MANIPULATION,
    **BY_ELEMENTS,
    **PRODUCTS,
    **FFT,
    **INDEXING,
    **FUNCTIONAL_VARIANTS,
}
"""The batching rule of each operator overload."""
DECOMPOSITIONS = {"meshgrid": meshgrid}
"""Decompositions into other operators, for operators without a rule of their own."""


def register_batching(library: Library) -> None:
    """Register all rules with the library that defines the operators, in one publication."""
    with library.dispatcher.transaction():
        kernels = {rule: make_batching_kernel(rule) for rule in set(RULES.values())}
        for name, rule in RULES.items():
            library.impl(name, kernels[rule], "FuncTorchBatched")
        for name, function in DECOMPOSITIONS.items():
            library.impl(name, function, "FuncTorchBatchedDecomposition")
