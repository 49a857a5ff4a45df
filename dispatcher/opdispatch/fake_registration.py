"""``register_fake``: what an operator returns for tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from opdispatch.function_schema import OperatorName
from opdispatch.library import Library
from opdispatch.operator_handle import OperatorHandle

F = TypeVar("F", bound=Callable[..., Any])


@overload
def register_fake(
    op: str | OperatorHandle,
    func: None = None,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> Callable[[F], F]: ...
@overload
def register_fake(
    op: str | OperatorHandle,
    func: F,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> F: ...
def register_fake(
    op: str | OperatorHandle,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> Any:
    """Registers the kernel of an operator for tensors without elements: fake ones, and on meta.

    ``@register_fake("image::sobel")``, or with ``func``, no decorator. The function takes the
    operator's arguments, tensors on ``meta`` among them, and returns what the operator would, as
    tensors on ``meta``: ``array_api.empty_like(x)``, ``Tensor(MetaArray(shape, dtype))``. Results
    of fake tensors pretend to be on the device of the arguments. It is undone with ``lib``; without
    one, it stays. A kernel for Meta that is there is covered; with ``allow_override=False`` it is a
    DuplicateDefinitionError. Raises RegistrationError. As ``torch.library.register_fake``.
    """
    name = str(op.name) if isinstance(op, OperatorHandle) else op
    library = lib or Library(OperatorName.parse(name).namespace, "FRAGMENT")

    def decorate(fn: F) -> F:
        library.impl(name, fn, "Meta", allow_override=allow_override)
        return fn

    return decorate if func is None else decorate(func)
