"""The operators of the library ``array``: the functions of the Python array API standard.

Their kernels for ``CPU`` and ``CUDA`` have one source, array-api-compat over NumPy and CuPy; those
for ``Meta`` say what shape and dtype a result has. ``register`` puts them into a dispatcher;
``opdispatch.array_library`` does that.

functions          the operators, and what the standard calls them
type_promotion     which element types go together
preconditions      what functions are not defined for, and libraries do not refuse
library_functions  what a library has for them, where it differs, adapted
extension_functions the same, for linear algebra and Fourier transforms
special_cases      infinities and zeros as the standard has them
numpy_calls        what of it goes to NumPy without what stands before its functions
numpy_loops        faster loops for what NumPy does slowly
kernels            kernels for arrays and tensors out of functions for arrays
half_precision     what is added up in float32, and scalars beside bfloat16
cupy_functions     what CuPy has for them, where it differs, adapted
cuda               kernels of CuPy's functions, imported when they are needed
sizes              sizes that no array can have
gpu_sizes          the same, of results on a GPU, for CuPy does not look
meta_kernels       shapes and dtypes of results; meta_* by topic
creation           which backend makes an array: that of the device that is asked for
indexing           what is behind x[...] and x[...] = value
functional_variants what stands for views and assignment where there are none
math_bits          conjugates and negatives that are not computed yet
"""

from __future__ import annotations

from functools import partial
from typing import Any

import array_api_compat.numpy

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.library.library import Library
from opdispatch.native.array.operators.creation import make_placed, make_selection
from opdispatch.native.array.operators.cuda import make_cuda_kernel
from opdispatch.native.array.operators.functional_variants import register_functional_variants
from opdispatch.native.array.operators.functions import FUNCTIONS, ArrayFunction, Kernel
from opdispatch.native.array.operators.half_precision import (
    in_float32,
    keeping_dtype,
    refusing_16_bits,
)
from opdispatch.native.array.operators.indexing import (
    INDEXING,
    getitem,
    meta_getitem,
    meta_setitem,
    setitem,
)
from opdispatch.native.array.operators.kernels import make_kernel
from opdispatch.native.array.operators.library_functions import find_function
from opdispatch.native.array.operators.math_bits import register_math_bits
from opdispatch.native.array.operators.meta_kernels import META_FUNCTIONS, make_meta_kernel
from opdispatch.native.array.operators.numpy_calls import NUMPY_CALLS
from opdispatch.tensors.tensor import Tensor

NAMESPACE = "array"


def register(library: Library) -> None:
    """Register all of them with a library of that namespace, in one publication."""
    with library.dispatcher.transaction():
        for function in FUNCTIONS:
            name = library.define(str(function.schema))
            makers = {
                "CPU": partial(_make_host_kernel, function),
                "CUDA": partial(make_cuda_kernel, function),
                "Meta": partial(make_meta_kernel, function, META_FUNCTIONS[name]),
            }
            for key, make in makers.items():
                if function.has_device and not function.is_creation:
                    make = partial(make_placed, library.dispatcher, function, make)
                library.impl(name, KernelFunction.from_maker(make), key)
            if function.is_creation:
                find = library.dispatcher.finder_of(f"{NAMESPACE}::{name}")
                library.impl(name, make_selection(function.schema, find), "BackendSelect")
        for function in INDEXING:
            name = library.define(str(function.schema))
            writes = function.schema.is_mutable
            call, on_meta = (setitem, meta_setitem) if writes else (getitem, meta_getitem)
            for key, make in (
                (
                    "CPU",
                    partial(make_kernel, function, call, None, NUMPY_CALLS.get(function.operator)),
                ),
                ("CUDA", partial(make_cuda_kernel, function, call, on_meta)),
                ("Meta", partial(make_meta_kernel, function, on_meta)),
            ):
                library.impl(name, KernelFunction.from_maker(make), key)
        register_functional_variants(library)
        register_math_bits(library)
        # ``Tensor.detach`` in a trace, so that a graph has it; elsewhere it needs no operator.
        library.define("detach(Tensor(a) x) -> Tensor(a)")
        library.impl("detach", _detach, "CompositeImplicitAutograd")


def _make_host_kernel(function: ArrayFunction) -> Kernel:
    on_host = refusing_16_bits(function, find_function(array_api_compat.numpy, function))
    unusual = in_float32(function, on_host) or keeping_dtype(function, on_host)
    return make_kernel(function, on_host, unusual, NUMPY_CALLS.get(function.operator))


def _detach(x: Any) -> Any:
    return x.detach_here() if isinstance(x, Tensor) else x
