"""How ``vmap`` batches the operators of the library ``array``: one table, by topic.

alignment            samples of different numbers of dimensions
elementwise          element by element, and tensors like others
reductions           sums, extrema, cumulative functions, sorting
manipulation         moved, cut and joined; those whose shapes are decided by elements
products             of vectors, matrices and tensors; linear algebra
fft                  Fourier transforms
indexing             indexing and assignment
functional_variants  the same without views and writes

Operators that make tensors of none need no rule: all samples have the same.
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
"""By operator, overload by overload."""
DECOMPOSITIONS = {"meshgrid": meshgrid}
"""By operator: what it is, in terms of others."""


def register_batching(library: Library) -> None:
    """Register all of them with the library that has the operators, in one publication."""
    with library.dispatcher.transaction():
        kernels = {rule: make_batching_kernel(rule) for rule in set(RULES.values())}
        for name, rule in RULES.items():
            library.impl(name, kernels[rule], "FuncTorchBatched")
        for name, function in DECOMPOSITIONS.items():
            library.impl(name, function, "FuncTorchBatchedDecomposition")
