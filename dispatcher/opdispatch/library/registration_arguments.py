"""Checks and converts the arguments of registrations: names, kernels and rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.boxing.kernel_function import KernelFunction, fallthrough_kernel
from opdispatch.errors import KernelTypeError, SchemaError
from opdispatch.tensors.tensor import handles_operators


def namespace_of(qualname: object) -> str:
    """Return the namespace in an operator's name. Raises SchemaError for a name without one."""
    namespace, colons, _ = str(qualname).partition("::")
    if not colons or not isinstance(qualname, str):
        raise SchemaError(f"the name of an operator looks like 'namespace::name', not {qualname!r}")
    return namespace


def kernel_of(fn: Callable[..., Any] | KernelFunction, *, with_keyset: bool) -> KernelFunction:
    """Return the kernel to register for a function. Raises KernelTypeError."""
    if isinstance(fn, KernelFunction):
        return fn
    if fn is fallthrough_kernel:
        return KernelFunction.fallthrough()
    return KernelFunction.from_unboxed(fn, with_keyset=with_keyset)


def check_rule(torch_dispatch_class: object, func: object) -> None:
    """Raise KernelTypeError unless the class handles calls and ``func`` is callable."""
    if not isinstance(torch_dispatch_class, type) or not handles_operators(torch_dispatch_class):
        raise KernelTypeError(
            "a rule requires a class of modes or tensors with a __torch_dispatch__, not "
            f"{torch_dispatch_class!r}"
        )
    if not callable(func):
        raise KernelTypeError(f"a rule must be callable, and {func!r} is not")
