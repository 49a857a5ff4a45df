"""The library ``array``: the functions of the Python array API standard as operators.

    import opdispatch.array_library
    from opdispatch import ops

    ops.array.add(x, y)
    ops.array.linalg_svd(x)

To import it is to load it: once in a process, or into interpreters with
``opdispatch load opdispatch.array_library``.
"""

from __future__ import annotations

from opdispatch.array_autocast import register_autocast_kernels
from opdispatch.array_batching import register_batching
from opdispatch.array_derivatives import register_derivatives
from opdispatch.array_functionalization import register_functionalization
from opdispatch.array_operators import NAMESPACE, register
from opdispatch.library import Library

lib = Library(NAMESPACE, "DEF")
register(lib)
register_derivatives(lib)
register_batching(lib)
register_autocast_kernels(lib)
register_functionalization(lib)
