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

    ``jvp(ctx, *tangents)`` gets a tangent for each positional argument: zeros for tensors that do
    not move, None for anything but a tensor of floating-point or complex numbers, a list for a
    list. It returns the tangent of the result, of the result's shape and dtype, or None for zero;
    of several results, a tuple. Calls in it are made at the levels below, so it nests with all
    transforms.

    ``setup_context(ctx, inputs, output)`` keeps what it needs, as that of ``register_autograd``,
    and may be the same function: ``ctx.save_for_forward`` or ``save_for_backward``, attributes, and
    ``ctx.set_materialize_grads(False)`` for None in the place of zeros. Without ``jvp`` it is a
    decorator. It is undone with ``lib``; without one, it stays. Raises OperatorNotFoundError, and
    RegistrationError for an operator that writes, gives views, or has keyword-only tensors. The
    functions are those of ``torch.autograd.Function``.
    """
    if jvp is None:

        def decorate(function: F) -> F:
            register_jvp(op, function, setup_context=setup_context, lib=lib)
            return function

        return decorate
    name, library = target_of(op, lib)
    return library.register_jvp(name, jvp, setup_context=setup_context)
