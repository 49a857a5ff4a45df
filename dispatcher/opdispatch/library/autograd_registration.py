"""``register_autograd``: the derivative of an operator of one's own."""

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
    """Register the derivative of an operator, ``"image::sobel"``, a handle or a CustomOpDef.

    ``backward(ctx, *grads)`` is given the gradients of the results, and returns one for each
    positional argument, None for anything but a tensor; a list for a list of tensors.
    ``setup_context(ctx, inputs, output)`` keeps what it needs with ``ctx.save_for_backward``, or as
    attributes of ``ctx``; of an operator with keyword-only arguments, they come by the name
    ``keyword_only_inputs``. It is undone with ``lib``; without one, it stays. Raises
    OperatorNotFoundError, RegistrationError. As ``torch.library.register_autograd``.
    """
    name, library = target_of(op, lib)
    library.register_autograd(name, backward, setup_context=setup_context)
