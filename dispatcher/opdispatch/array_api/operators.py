"""The operators that the namespace calls: those of ``opdispatch.array_library``, or its own."""

from __future__ import annotations

import importlib
from typing import Any

from opdispatch import library as default_library
from opdispatch import tensor_operators
from opdispatch.array_autocast import register_autocast_kernels
from opdispatch.array_batching import register_batching
from opdispatch.array_derivatives import register_derivatives
from opdispatch.array_functionalization import register_functionalization
from opdispatch.array_operators import NAMESPACE, register
from opdispatch.dispatcher import Dispatcher
from opdispatch.library import Library
from opdispatch.ops import Ops


def _choose() -> Any:
    if not tensor_operators.is_private():
        importlib.import_module("opdispatch.array_library")
        return default_library.ops.array
    dispatcher = Dispatcher()
    library = Library(NAMESPACE, "DEF", dispatcher=dispatcher)
    register(library)
    register_derivatives(library)
    register_batching(library)
    register_autocast_kernels(library)
    register_functionalization(library)
    return Ops(dispatcher).array


OPERATORS: Any = _choose()
"""``ops.array``, of whichever dispatcher."""
