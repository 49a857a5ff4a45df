"""Devices by their names: PyTorch's, such as ``cpu``, ``cuda:1`` and ``privateuseone:0``."""

from __future__ import annotations

import reprlib

from opdispatch.errors import DeviceError
from opdispatch.keys.dispatch_key import BackendComponent
from opdispatch.schema.default import check_device

COMPONENTS = {
    **{
        component.name.lower(): component
        for component in BackendComponent
        if not component.name.startswith("PrivateUse")
    },
    "privateuseone": BackendComponent.PrivateUse1,
}
"""The bit in key sets of each type of device that can hold tensors (``c10/core/DeviceType.h``)."""


def split_device(device: str) -> tuple[str, int | None]:
    """Return the type of a device, and its number if it has one. Raises DeviceError for others."""
    try:
        kind, _, number = check_device(device).partition(":")
    except (ValueError, TypeError):  # no text at all
        kind = ""
    if kind not in COMPONENTS:
        raise DeviceError(
            f"there is no device {reprlib.repr(device)}; expected one such as 'cpu' or 'cuda:0'"
        )
    return kind, int(number) if number else None


def canonical_device(device: str) -> str:
    """Return a device with its number: ``"cuda:0"`` for ``"cuda"``.

    ``"cpu"`` and ``"meta"`` have none.

    Raises DeviceError for anything but a device.
    """
    kind, number = split_device(device)
    return kind if kind in ("cpu", "meta") else f"{kind}:{number or 0}"


def device_mismatch(what: str, one: str, other: str, *, parts: str = "arguments") -> DeviceError:
    """Return the error for tensors on two devices, worded as in PyTorch.

    The ``parts`` of ``what``.
    """
    return DeviceError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{one} and {other}! (when checking the {parts} of {what})",
        hint="move one of them with Tensor.to",
    )
