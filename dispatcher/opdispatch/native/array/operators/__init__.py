"""The operators of the library ``array``: the functions of the Python array API standard.

Their kernels for ``CPU`` and ``CUDA`` have one source, array-api-compat over NumPy and CuPy; those
for ``Meta`` compute the shape and dtype of a result. ``opdispatch.array_library`` calls
``register`` to add them to a dispatcher.

functions          the operators' schemas, and the functions of the standard that they call
type_promotion     check that the standard defines a promoted dtype
preconditions      check arguments that libraries do not, or report badly
library_functions  NumPy's and CuPy's functions, adapted to the schemas
extension_functions the same for linear algebra and Fourier transforms
special_cases      infinities and signed zeros as in the standard
numpy_calls        expressions that call NumPy's C functions directly
numpy_loops        faster loops where NumPy's are slow
kernels            compile kernels for arrays and tensors from functions of arrays
half_precision     accumulate in float32; promote bfloat16 with scalars
cupy_functions     CuPy's functions, adapted where they differ from NumPy's
cuda               kernels for CUDA, which import CuPy on first use
sizes              refuse sizes beyond those of any array
gpu_sizes          the same for results on a GPU, which CuPy does not check
meta_kernels       shapes and dtypes of results; meta_* by topic
creation           select the backend of a new array by its device
indexing           x[...] and x[...] = value
functional_variants functional variants of views and assignment
math_bits          lazy conjugate and negative views
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
    """Define all operators in ``library``, of the namespace ``array``, in one publication."""
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
        # Tracing records ``Tensor.detach`` as this operator; it is not called otherwise.
        library.define("detach(Tensor(a) x) -> Tensor(a)")
        library.impl("detach", _detach, "CompositeImplicitAutograd")


def _make_host_kernel(function: ArrayFunction) -> Kernel:
    on_host = refusing_16_bits(function, find_function(array_api_compat.numpy, function))
    unusual = in_float32(function, on_host) or keeping_dtype(function, on_host)
    return make_kernel(function, on_host, unusual, NUMPY_CALLS.get(function.operator))


def _detach(x: Any) -> Any:
    return x.detach_here() if isinstance(x, Tensor) else x
