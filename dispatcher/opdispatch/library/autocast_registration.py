"""``register_autocast``: the casts that autocast applies to an operator."""

from __future__ import annotations

from typing import Any

from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.functionalities.autocast import cast_inputs as make_policy
from opdispatch.functionalities.autocast import make_autocast_kernel
from opdispatch.library.library import Library
from opdispatch.library.registration_target import OperatorLike, target_of
from opdispatch.local_state.autocast_mode import autocast_key


def register_autocast(
    op: OperatorLike,
    device_type: str,
    cast_inputs: Any,
    /,
    *,
    lib: Library | None = None,
) -> RegistrationHandle:
    """Register the casts of an operator's tensors in `autocast`.

    It is a kernel for the device's Autocast key. In an autocast block, floating-point tensors of
    ``device_type``, except float64, are cast to the dtype ``cast_inputs``, and the operator runs
    with autocast disabled. ``op`` is an operator, its name, ``"image::sobel"``, or a CustomOpDef.
    The registration is undone with ``lib``; without one, it is permanent. Raises ArgumentError for
    a device type without an Autocast key and for an invalid dtype, and OperatorNotFoundError.

    Mirrors ``torch.library.register_autocast``; keyword-only arguments are cast as well.
    """
    key = autocast_key(device_type)
    kernel = make_autocast_kernel(make_policy(cast_inputs), device_type)
    name, library = target_of(op, lib)
    return library.impl(library.dispatcher.get_schema(name), kernel, key)
