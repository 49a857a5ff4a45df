"""The arrays of fake tensors: shape, dtype and device, but no elements."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from opdispatch.arrays.devices import COMPONENTS, canonical_device, split_device
from opdispatch.arrays.meta_backend import MetaArray
from opdispatch.errors import DeviceError
from opdispatch.keys.dispatch_key import DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

FAKE_BIT = bits_of_key(DispatchKey.Fake)


class FakeArray(MetaArray):
    """Array without elements that reports ``device``; the machine need not have that device.

    Its keys are Fake and the dense key of the device's backend. Mirrors a tensor on ``meta`` with
    a ``fake_device`` in ``torch/_subclasses/fake_tensor.py``.
    """

    __slots__ = ("base", "device", "recorded")

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, device: str, base: Any = None
    ) -> None:
        """Raise DeviceError for ``meta`` and for an invalid device name."""
        super().__init__(shape, dtype)
        self.device = canonical_device(device)
        if self.device == "meta":
            raise DeviceError("a fake tensor cannot be on 'meta'; expected a device with memory")
        self.base = base
        """The array that this is a view of, or None."""
        self.recorded: Any = None
        """The recorded call that computes it, for deferred initialization."""

    @property
    def key_bits(self) -> int:
        """The dispatch key word."""
        return _key_bits(self.device)

    def like(self) -> FakeArray:
        """Return another array of the same shape, dtype and device."""
        return FakeArray(self.shape, self.dtype, self.device)

    def __repr__(self) -> str:
        return f"FakeArray({list(self.shape)}, {self.dtype})"


@cache
def _key_bits(device: str) -> int:
    component = COMPONENTS[split_device(device)[0]]
    key = to_runtime_key(DispatchKey.Dense, component)
    return DispatchKeySet.of(DispatchKey.Fake, key).bits
