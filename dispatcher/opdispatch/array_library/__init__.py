"""The library ``array``: the functions of the Python array API standard as operators.

    import opdispatch.array_library
    from opdispatch import ops

    ops.array.add(x, y)
    ops.array.linalg_svd(x)

To import it is to load it: once in a process, or into interpreters with
``opdispatch load opdispatch.array_library``. Its kernels for ``CPU`` and ``CUDA`` have one source,
array-api-compat over NumPy and CuPy; those for ``Meta`` say what shape and dtype a result has.

functions      the operators, and what the standard calls them
dtypes         which element types go together
kernels        kernels for arrays and tensors out of functions for arrays
cuda           CuPy's functions, imported when they are needed
meta_kernels   shapes and dtypes of results; meta_* by topic
creation       which backend makes an array that is made of none
"""

from __future__ import annotations

import array_api_compat.numpy

from opdispatch.array_library.creation import make_selection
from opdispatch.array_library.cuda import make_cuda_kernel
from opdispatch.array_library.functions import FUNCTIONS
from opdispatch.array_library.kernels import find_function, make_kernel
from opdispatch.array_library.meta_kernels import META_FUNCTIONS
from opdispatch.library import Library

NAMESPACE = "array"

lib = Library(NAMESPACE, "DEF")
with lib.dispatcher.transaction():
    for _function in FUNCTIONS:
        _name = lib.define(str(_function.schema))
        _cpu = find_function(array_api_compat.numpy, _function)
        lib.impl(_name, make_kernel(_function, _cpu), "CPU")
        lib.impl(_name, make_cuda_kernel(_function), "CUDA")
        lib.impl(_name, make_kernel(_function, META_FUNCTIONS[_name]), "Meta")
        if _function.is_creation:
            lib.impl(_name, make_selection(lib.dispatcher, _function), "BackendSelect")
