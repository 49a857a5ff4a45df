"""The library ``random``: operators that generate random numbers.

    import opdispatch.random_library
    from opdispatch import Generator, ops

    generator = Generator().manual_seed(1)
    ops.random.randn([2, 3], generator=generator)
    ops.random.dropout(x, 0.1, generator=generator)

Importing the module registers the library in this process. To load it into a service's
interpreters, use ``opdispatch load opdispatch.random_library``.
"""

from __future__ import annotations

from opdispatch.library.library import Library
from opdispatch.native.random import NAMESPACE, register

lib = Library(NAMESPACE, "DEF")
register(lib)
