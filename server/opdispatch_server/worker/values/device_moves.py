"""Moving a value to another device, as ``Tensor.to`` does."""

from __future__ import annotations

from typing import Any, NamedTuple

from opdispatch.arrays import LAYOUTS, on_device
from opdispatch.local_state.grad_mode import is_grad_enabled, no_grad
from opdispatch.tensors.tensor import Tensor
from opdispatch_wire.tensors import is_tensor
from opdispatch_wire.v1 import values_pb2


class Copied(NamedTuple):
    """A value copied from another interpreter, without its history."""

    value: Any


def moved_to(device: str, value: Any, *, is_copy: bool = False) -> Any:
    """Return the value on a device, also tensors in lists; values already there are unchanged.

    The move is recorded, except for a copy, which begins a new history. Raises DeviceError, and
    DeviceMemoryError.
    """
    if isinstance(value, Copied):
        return moved_to(device, value.value, is_copy=True)
    if isinstance(value, list | tuple):
        return [moved_to(device, item, is_copy=is_copy) for item in value]
    if not is_tensor(value):
        return value
    if not isinstance(value, Tensor):
        return on_device(value, device)
    return _begun_at(device, value) if is_copy else value.to(device)


def _begun_at(device: str, value: Tensor) -> Tensor:
    with no_grad():
        moved = value.to(device)
    moved.requires_grad_flag = value.requires_grad and is_grad_enabled()
    return moved


def put_on_host(message: values_pb2.Value) -> bool:
    """Change a tensor sent from a device to be decoded on the host, with the host's keys.

    Return whether it is a plain array. A ``Tensor`` will get the keys of its new device.
    """
    kind = message.WhichOneof("kind") or "tensor"
    sent = getattr(message, kind)
    is_plain = not sent.dispatch_keys
    sent.dispatch_keys = 0
    parts = LAYOUTS[kind].part_names if kind in LAYOUTS else ()
    for part in [getattr(sent, name) for name in parts] or [sent]:
        part.device = "cpu"
    return is_plain
