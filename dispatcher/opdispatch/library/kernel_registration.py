"""``register_kernel``: the kernel of an operator for device types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from opdispatch.library.library import Library, impl
from opdispatch.library.registration_target import OperatorLike, definition_for, name_of

F = TypeVar("F", bound=Callable[..., Any])


@overload
def register_kernel(
    op: OperatorLike,
    device_types: str | Sequence[str] | None,
    func: None = None,
    /,
    *,
    lib: Library | None = None,
) -> Callable[[F], F]: ...
@overload
def register_kernel(
    op: OperatorLike,
    device_types: str | Sequence[str] | None,
    func: F,
    /,
    *,
    lib: Library | None = None,
) -> F: ...
def register_kernel(
    op: OperatorLike,
    device_types: str | Sequence[str] | None,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
) -> Any:
    """Register a kernel of an operator for device types such as ``"cpu"``; None means all.

    ``op`` is an operator, its name, ``"image::sobel"``, or a CustomOpDef, whose ``register_kernel``
    is then called. Without ``func`` it returns a decorator. The registration is undone with
    ``lib``; without one, it is permanent. Raises DispatchKeyError for an unknown device type, and
    the errors of ``Library.impl``. As ``torch.library.register_kernel``.
    """
    if (definition := definition_for(op, lib)) is not None:
        register = definition.register_kernel
        return register(device_types) if func is None else register(device_types, func)
    types = "default" if device_types is None else device_types
    if func is None:
        return impl(name_of(op), types, lib=lib)
    return impl(name_of(op), types, func, lib=lib)
