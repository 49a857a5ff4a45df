"""``register_fake``: the fake kernel of an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, definition_for, target_of
from opdispatch.local_state.deprecation import warn_deprecated

F = TypeVar("F", bound=Callable[..., Any])


@overload
def register_fake(
    op: OperatorLike,
    func: None = None,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> Callable[[F], F]: ...
@overload
def register_fake(
    op: OperatorLike,
    func: F,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> F: ...
def register_fake(
    op: OperatorLike,
    func: Callable[..., Any] | None = None,
    /,
    *,
    lib: Library | None = None,
    allow_override: bool = True,
) -> Any:
    """Register an operator's fake kernel, which runs for fake and meta tensors.

    Use it as ``@register_fake("image::sobel")``, or pass ``func``. The function gets the operator's
    arguments, with tensors on ``meta``, and returns results like the operator's, as tensors on
    ``meta``: ``array_api.empty_like(x)``, ``Tensor(MetaArray(shape, dtype))``. Results for fake
    tensors report the device of the arguments. The registration is undone with ``lib``; without
    one, it is permanent. It overrides an existing kernel for Meta; with ``allow_override=False``,
    that raises DuplicateDefinitionError. Raises RegistrationError, also for an operator that is not
    defined or is CompositeImplicitAutograd. ``op`` may be a CustomOpDef, whose ``register_fake`` is
    then called. As ``torch.library.register_fake``.
    """
    if (definition := definition_for(op, lib)) is not None:
        return definition.register_fake if func is None else definition.register_fake(func)
    name, library = target_of(op, lib)

    def decorate(fn: F) -> F:
        library.register_fake(name, fn, allow_override=allow_override)
        return fn

    return decorate if func is None else decorate(func)


def impl_abstract(
    qualname: OperatorLike,
    func: Callable[..., Any] | None = None,
    *,
    lib: Library | None = None,
    _stacklevel: int = 1,
) -> Any:
    """Warn and call ``register_fake``, under its name in PyTorch before 2.4."""
    warn_deprecated(
        "impl_abstract",
        since="0.1.0",
        removed="1.0.0",
        replacement="register_fake",
        category=FutureWarning,
    )
    return (
        register_fake(qualname, lib=lib) if func is None else register_fake(qualname, func, lib=lib)
    )
