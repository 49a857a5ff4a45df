"""Parsing of PyTorch's device names, such as ``cpu``, ``cuda:1`` and ``privateuseone:0``."""

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
"""Backend component, the bit in key sets, by device type (``c10/core/DeviceType.h``)."""


def split_device(device: str) -> tuple[str, int | None]:
    """Return the type and the index of a device: ("cuda", 1) for "cuda:1", ("cuda", None) for
    "cuda".

    Raises DeviceError for an invalid name.
    """
    try:
        kind, _, number = check_device(device).partition(":")
    except (ValueError, TypeError):  # TypeError: not a string
        kind = ""
    if kind not in COMPONENTS:
        raise DeviceError(
            f"there is no device {reprlib.repr(device)}; expected one such as 'cpu' or 'cuda:0'"
        )
    return kind, int(number) if number else None


def canonical_device(device: str) -> str:
    """Return a device name with its index: ``"cuda:0"`` for ``"cuda"``.

    ``"cpu"`` and ``"meta"`` have no index. Raises DeviceError for an invalid name.
    """
    kind, number = split_device(device)
    return kind if kind in ("cpu", "meta") else f"{kind}:{number or 0}"


def device_mismatch(what: str, one: str, other: str, *, parts: str = "arguments") -> DeviceError:
    """Return PyTorch's error for the ``parts`` of ``what`` being on devices ``one`` and ``other``.

    ``what`` names the operator or tensor in the message.
    """
    return DeviceError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{one} and {other}! (when checking the {parts} of {what})",
        hint="move one of them with Tensor.to",
    )
