"""Kernels of the simulated accelerator for the library ``array``: none for views, none for writes.

Operators that make new arrays compute; those that give views of arrays or write to them refuse. A
program with views and writes runs there once it is functionalized. Its text is a part of a kernel
library, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opdispatch import Dispatcher, Library, Tensor
from opdispatch.array_api.operators import OPERATORS
from opdispatch.native.array.operators import functional_variants
from tests.simulated_accelerator import AcceleratorArray

HERE = "privateuseone:0"
REFUSED = (*functional_variants.VIEWS, "setitem_.Scalar", "setitem_.Tensor")
COMPUTED = (
    *(f"{view}_copy" for view in functional_variants.VIEWS),
    *("copy", "imag_scatter", "real_scatter", "setitem.Scalar", "setitem.Tensor"),
    *("add.Tensor", "add.Scalar", "multiply.Tensor", "multiply.Scalar", "sum", "where", "concat"),
)


class RefusedError(Exception):
    """Raised by kernels for what the accelerator cannot do."""


def implement_operators(dispatcher: Dispatcher | None = None) -> Library:
    """Register the kernels, until the library is closed; by default, in the default dispatcher."""
    library = Library("array", "IMPL", "PrivateUse1", dispatcher=dispatcher)
    for name in REFUSED:
        library.impl(name, refusing(name))
    for name in COMPUTED:
        library.impl(name, computing(name))
    return library


def refusing(name: str) -> Callable[..., Any]:
    """A kernel for what it cannot do."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise RefusedError(name)

    return refuse


def computing(name: str) -> Callable[..., Any]:
    """The operator, in the accelerator's memory: what it makes has elements of its own."""
    packet, _, overload = name.partition(".")

    def memory(value: Any) -> Any:
        if isinstance(value, list):
            return [memory(each) for each in value]
        array = value.array if isinstance(value, Tensor) else value
        return array._memory if isinstance(array, AcceleratorArray) else array

    def there(value: Any) -> Any:
        if isinstance(value, list):
            return [there(each) for each in value]
        return Tensor(AcceleratorArray(np.array(value)))

    def compute(*args: Any, **kwargs: Any) -> Any:
        operator = getattr(getattr(OPERATORS, packet), overload or "default")
        return there(operator(*map(memory, args), **{k: memory(v) for k, v in kwargs.items()}))

    return compute
