"""Slots for functions of higher layers, which ``opdispatch/__init__.py`` fills.

``x + y`` of tensors calls a function of the array API, a layer that imports tensors. To avoid the
import cycle, lower layers call the functions here, which import the higher one on the first call.

PyTorch has similar slots in ``c10/core/impl`` and ``ATen/detail``: hook interfaces that a library
sets when it is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_slots: dict[str, Callable[[], Any]] = {}


def fill_slots(
    *,
    array_namespace: Callable[[], Any],
    array_operators: Callable[[], Any],
    vmap: Callable[[], Any],
    call_below_python: Callable[[], Any],
    tensor_getitem: Callable[[], Any],
) -> None:
    """Set the functions that import each object. Must be called before any slot is used."""
    _slots.update(
        array_namespace=array_namespace,
        array_operators=array_operators,
        vmap=vmap,
        call_below_python=call_below_python,
        tensor_getitem=tensor_getitem,
    )


@functools.cache
def array_namespace() -> Any:
    """Return the module ``opdispatch.array_api``."""
    return _slots["array_namespace"]()


@functools.cache
def array_operators() -> Any:
    """Return the operators that the array API calls: ``ops.array`` of the dispatcher it uses."""
    return _slots["array_operators"]()


@functools.cache
def vmap() -> Any:
    """Return ``opdispatch.vmap``."""
    return _slots["vmap"]()


@functools.cache
def tensor_getitem() -> Any:
    """Return ``Tensor.__getitem__`` of the operators that the array API calls."""
    return _slots["tensor_getitem"]()


@functools.cache
def call_below_python() -> Any:
    """Return the implementation of ``Tensor.__torch_dispatch__``: a function of operator, args and
    kwargs.
    """
    return _slots["call_below_python"]()
