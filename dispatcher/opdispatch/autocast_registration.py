"""``register_autocast``: what autocast casts for an operator of one's own."""

from __future__ import annotations

from typing import Any

from opdispatch.autocast_mode import autocast_key
from opdispatch.functionalities.autocast import cast_inputs as make_policy
from opdispatch.functionalities.autocast import make_autocast_kernel
from opdispatch.library import Library
from opdispatch.operator_handle import OperatorHandle
from opdispatch.registration import RegistrationHandle


def register_autocast(
    op: str | OperatorHandle,
    device_type: str,
    cast_inputs: Any,
    /,
    *,
    lib: Library | None = None,
) -> RegistrationHandle:
    """Has `autocast` cast the tensors of an operator: its kernel for the device's Autocast key.

    In a block, floating-point tensors of ``device_type`` but those of float64 are cast to the dtype
    ``cast_inputs``, and the operator runs with autocast off. ``op`` is an operator, or its name,
    ``"image::sobel"``. It is undone with ``lib``; without one, it stays. Raises ArgumentError for a
    device type that has no Autocast key and for what is no dtype of numbers, and
    OperatorNotFoundError.

    Mirrors ``torch.library.register_autocast``; keyword-only arguments are cast as well.
    """
    key = autocast_key(device_type)
    kernel = make_autocast_kernel(make_policy(cast_inputs), device_type)
    namespace = str(op.name if isinstance(op, OperatorHandle) else op).partition("::")[0]
    library = lib or Library(namespace, "FRAGMENT")
    handle = library.dispatcher.get_schema(op.name if isinstance(op, OperatorHandle) else op)
    return library.impl(handle, kernel, key)
