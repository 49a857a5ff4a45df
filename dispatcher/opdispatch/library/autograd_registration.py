"""``register_autograd``: the derivative of a custom operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, target_of


def register_autograd(
    op: OperatorLike,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
) -> None:
    """Register the derivative of an operator: its name, a handle or a CustomOpDef.

    ``backward(ctx, *grads)`` is called with the gradients of the results, and returns one for each
    positional argument: None for anything but a tensor, a list for a list of tensors.
    ``setup_context(ctx, inputs, output)`` saves what it needs with ``ctx.save_for_backward``, or as
    attributes of ``ctx``; for an operator with keyword-only arguments, these are passed as
    ``keyword_only_inputs``. The registration is undone with ``lib``; without one, it is permanent.
    Raises OperatorNotFoundError, RegistrationError. As ``torch.library.register_autograd``.
    """
    name, library = target_of(op, lib)
    library.register_autograd(name, backward, setup_context=setup_context)
