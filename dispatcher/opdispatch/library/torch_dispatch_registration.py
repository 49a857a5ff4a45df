"""``register_torch_dispatch``: the handler of one operator for a mode or a tensor subclass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, definition_for, target_of

F = TypeVar("F", bound=Callable[..., Any])


@overload
def register_torch_dispatch(
    op: OperatorLike,
    torch_dispatch_class: type,
    func: None = None,
    /,
    *,
    lib: Library | None = None,
) -> Callable[[F], F]: ...
@overload
def register_torch_dispatch(
    op: OperatorLike,
    torch_dispatch_class: type,
    func: F,
    /,
    *,
    lib: Library | None = None,
) -> F: ...
def register_torch_dispatch(
    op: OperatorLike,
    torch_dispatch_class: type,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
) -> Any:
    """Register a function that handles an operator's calls for modes or tensors of a class.

    ``func(mode, func, types, args, kwargs)`` is called instead of the ``__torch_dispatch__`` of a
    TorchDispatchMode of exactly that class, and ``func(cls, func, types, args, kwargs)`` instead of
    that of a class of tensors; NotImplemented passes the call on to the next one. Without ``func``
    it returns a decorator. ``op`` is an operator, its name, ``"image::sobel"``, which need not be
    defined yet, or a CustomOpDef. The registration is undone with ``lib``; without one, it is
    permanent. Raises KernelTypeError for any other class, DuplicateDefinitionError if a function
    is already registered. As ``torch.library.register_torch_dispatch``.
    """
    if (definition := definition_for(op, lib)) is not None:
        register = definition.register_torch_dispatch
        return register(torch_dispatch_class, func) if func else register(torch_dispatch_class)
    name, library = target_of(op, lib)

    def decorate(fn: F) -> F:
        library.register_torch_dispatch(name, torch_dispatch_class, fn)
        return fn

    return decorate if func is None else decorate(func)
