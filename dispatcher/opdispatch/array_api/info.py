"""``__array_namespace_info__``: the namespace's devices, dtypes and capabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from opdispatch import arrays
from opdispatch.array_api.data_types import DTYPES, isdtype


class NamespaceInfo:
    """``__array_namespace_info__()`` of the standard."""

    def capabilities(self) -> dict[str, Any]:
        """Return the capabilities: boolean indexing, data-dependent shapes, and NumPy's limit of
        dimensions.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Return ``"cpu"``."""
        return "cpu"

    def default_dtypes(self, *, device: str | None = None) -> dict[str, np.dtype[Any]]:
        """Return the default dtypes of ``zeros``, ``arange`` and so on, by the standard's kinds.

        Raises DeviceError for an invalid device.
        """
        _check_device(device)
        return {
            "real floating": DTYPES["float64"],
            "complex floating": DTYPES["complex128"],
            "integral": np.dtype(np.intp),
            "indexing": np.dtype(np.intp),
        }

    def devices(self) -> tuple[str, ...]:
        """Return the devices that this process can use, such as ``("cpu", "cuda:0")``."""
        return ("cpu", *_accelerators())

    def dtypes(self, *, device: str | None = None, kind: Any = None) -> dict[str, np.dtype[Any]]:
        """Return the supported dtypes by name; with ``kind``, only those of that kind or kinds.

        Raises DeviceError for an invalid device.
        """
        _check_device(device)
        return {
            name: dtype for name, dtype in DTYPES.items() if kind is None or isdtype(dtype, kind)
        }


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807
    """Return the devices, dtypes and capabilities of the namespace."""
    return NamespaceInfo()


def _check_device(device: str | None) -> None:
    """Raise DeviceError for an invalid device name.

    The device need not exist in this process: remote tensors may be on others.
    """
    if device is not None:
        arrays.split_device(device)


def _accelerators() -> list[str]:
    return [
        f"{backend.device_type}:{number}"
        for backend in arrays.backends()
        if backend.device_type != "cpu"
        for number in range(backend.device_count())
    ]
