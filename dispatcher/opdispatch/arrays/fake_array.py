"""Arrays without elements that have a device, the arrays of fake tensors."""

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
    """Stand-in for an array on ``device``, whether there is such a device here or not.

    Its keys are Fake and those of the device's backend. Mirrors what is in
    ``torch/_subclasses/fake_tensor.py`` a tensor on ``meta`` with a ``fake_device``.
    """

    __slots__ = ("base", "device", "recorded")

    def __init__(
        self, shape: tuple[int, ...], dtype: DTypeLike, device: str, base: Any = None
    ) -> None:
        """Raise DeviceError for ``meta``, and for anything but a device."""
        super().__init__(shape, dtype)
        self.device = canonical_device(device)
        if self.device == "meta":
            raise DeviceError("a fake tensor is on a device that has memory, and 'meta' has none")
        self.base = base
        """The base of a view, or None."""
        self.recorded: Any = None
        """The recorded call that makes it, for deferred initialization."""

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
