"""The operators that the namespace calls: those of ``opdispatch.array_library``, or its own."""

from __future__ import annotations

import importlib
from typing import Any

from opdispatch import library, tensor_operators
from opdispatch.array_operators import NAMESPACE, register
from opdispatch.dispatcher import Dispatcher
from opdispatch.library import Library
from opdispatch.ops import Ops


def _choose() -> Any:
    if not tensor_operators.is_private():
        importlib.import_module("opdispatch.array_library")
        return library.ops.array
    dispatcher = Dispatcher()
    register(Library(NAMESPACE, "DEF", dispatcher=dispatcher))
    return Ops(dispatcher).array


OPERATORS: Any = _choose()
"""``ops.array``, of whichever dispatcher."""
