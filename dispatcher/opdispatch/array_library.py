"""The library ``array``: the functions of the Python array API standard as operators.

    import opdispatch.array_library
    from opdispatch import ops

    ops.array.add(x, y)
    ops.array.linalg_svd(x)

Importing the module registers the library in this process. To load it into a service's
interpreters, use ``opdispatch load opdispatch.array_library``.
"""

from __future__ import annotations

from opdispatch.library.library import Library
from opdispatch.native.array.autocast import register_autocast_kernels
from opdispatch.native.array.batching import register_batching
from opdispatch.native.array.derivatives import register_derivatives
from opdispatch.native.array.functionalization import register_functionalization
from opdispatch.native.array.operators import NAMESPACE, register

lib = Library(NAMESPACE, "DEF")
register(lib)
register_derivatives(lib)
register_batching(lib)
register_autocast_kernels(lib)
register_functionalization(lib)
