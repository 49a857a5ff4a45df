"""``register_jvp``: the forward-mode derivative of a custom operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, target_of

F = TypeVar("F", bound=Callable[..., Any])
_Setup = Callable[..., Any] | None


@overload
def register_jvp(
    op: OperatorLike,
    jvp: None = None,
    /,
    *,
    setup_context: _Setup = None,
    lib: Library | None = None,
) -> Callable[[F], F]: ...
@overload
def register_jvp(
    op: OperatorLike,
    jvp: Callable[..., Any],
    /,
    *,
    setup_context: _Setup = None,
    lib: Library | None = None,
) -> RegistrationHandle: ...
def register_jvp(
    op: OperatorLike,
    jvp: Callable[..., Any] | None = None,
    /,
    *,
    setup_context: _Setup = None,
    lib: Library | None = None,
) -> Any:
    """Register the forward-mode derivative of an operator: its name, a handle or a CustomOpDef.

    ``jvp(ctx, *tangents)`` gets a tangent for each positional argument: zeros for tensors without
    one, None for anything but a floating-point or complex tensor, and a list for a list of tensors.
    It returns the tangent of the result, with its shape and dtype, or None for zero; for several
    results, a tuple. Operator calls in it run at the levels below, so it nests with all transforms.

    ``setup_context(ctx, inputs, output)`` saves values for ``jvp`` with ``ctx.save_for_forward`` or
    ``save_for_backward``, or as attributes of ``ctx``; it may be the same function as that of
    ``register_autograd``. After ``ctx.set_materialize_grads(False)``, ``jvp`` gets None instead of
    zeros. Without ``jvp``, returns a decorator. The registration is undone with ``lib``; without
    one, it is permanent. Raises OperatorNotFoundError, and RegistrationError for an operator that
    mutates arguments, returns views, or has keyword-only tensors. Both functions have the
    signatures of those of ``torch.autograd.Function``.
    """
    if jvp is None:

        def decorate(function: F) -> F:
            register_jvp(op, function, setup_context=setup_context, lib=lib)
            return function

        return decorate
    name, library = target_of(op, lib)
    return library.register_jvp(name, jvp, setup_context=setup_context)
