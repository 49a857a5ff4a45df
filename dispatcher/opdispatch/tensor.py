"""A tensor that knows its dispatch keys: an array of some backend, and more.

Mirrors the part of ``c10::TensorImpl`` that the dispatcher looks at: the key set that it
computes once, from the device and from what is switched on for the tensor.
"""

from __future__ import annotations

import html
from typing import Any

import numpy as np

from opdispatch import arrays
from opdispatch.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.errors import ArgumentError
from opdispatch.tensor_operators import TensorOperators

_AUTOCAST_KEYS = {
    backend: DispatchKey[f"Autocast{backend.name}"]
    for backend in BackendComponent
    if f"Autocast{backend.name}" in DispatchKey.__members__
}


def key_set_of_backend(backend: BackendComponent) -> DispatchKeySet:
    """The keys that PyTorch gives a plain dense tensor of ``backend``.

    Dense, ADInplaceOrView, Autograd and, where the backend has one, its Autocast key.
    """
    keys = DispatchKeySet.of(
        to_runtime_key(DispatchKey.Dense, backend),
        DispatchKey.ADInplaceOrView,
        to_runtime_key(DispatchKey.AutogradFunctionality, backend),
    )
    return keys.add(_AUTOCAST_KEYS[backend]) if backend in _AUTOCAST_KEYS else keys


class Tensor(TensorOperators):
    """An array with the dispatch keys of a PyTorch tensor.

    ``array`` is an array of any backend (NumPy, CuPy, one of your own), which is shared and not
    copied; one of another library's, such as PyTorch or JAX, is taken over by DLPack. ``keys``
    overrides the keys that follow from the array's backend. It is an array of the array API
    standard: its operators call those of the library ``array``. NumPy's functions take a tensor for
    the array that it is, and give plain arrays. Raises TypeError if ``array`` is no array, and
    DeviceError if its elements cannot be had.
    """

    __slots__ = ("__weakref__", "array", "key_bits", "requires_grad")

    array: Any
    key_bits: int
    requires_grad: bool

    def __init__(
        self, array: Any, *, keys: DispatchKeySet | None = None, requires_grad: bool = False
    ) -> None:
        if isinstance(array, Tensor):
            array = array.array
        if arrays.find_key_bits(array) is None and arrays.is_foreign(array):
            array = arrays.adopt(array)
        bits = arrays.key_bits_of(array)
        if keys is None:
            backend = DispatchKeySet(bits).highest_backend_key
            keys = key_set_of_backend(backend) if backend is not None else DispatchKeySet(bits)
        self.array = np.asarray(array) if isinstance(array, np.generic) else array
        self.key_bits = keys.bits
        self.requires_grad = requires_grad

    @property
    def key_set(self) -> DispatchKeySet:
        """The tensor's dispatch keys."""
        return DispatchKeySet(self.key_bits)

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:N"`` for an array on the N-th GPU."""
        return arrays.device_of(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extent of each dimension, in elements."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def to(self, device: str) -> Tensor:
        """The tensor on ``device``: itself, if it is there; else a copy with that device's keys.

        Without a number, such as ``"cuda"``, it is the current device of that type. Raises
        DeviceError if there is none, and DeviceMemoryError if it has no room.
        """
        kind, number = arrays.split_device(device)
        here, place = arrays.split_device(self.device)
        if kind == here and number in (None, place):
            return self
        backend = arrays.find_backend(type(self.array))
        assert backend is not None, "a tensor's array is one of a backend"
        copy = arrays.backend_of_device(device).from_host(backend.to_host(self.array), device)
        return Tensor(copy, requires_grad=self.requires_grad)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        given = kwargs.get("out", ())
        if given:
            kwargs["out"] = tuple(_array_of(value) for value in given)
        result = getattr(ufunc, method)(*(_array_of(value) for value in inputs), **kwargs)
        # Whoever gives a tensor to write to gets that tensor back, as with `x += 1`.
        if len(given) == 1:
            return given[0]
        if given:
            return tuple(r if g is None else g for r, g in zip(result, given, strict=True))
        return result

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """``to``, by the array API standard's name. Raises ArgumentError for a stream."""
        if stream is not None:
            raise ArgumentError("to_device takes no stream; it uses the current one of the device")
        return self.to(device)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[_index_of(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[_index_of(index)] = _array_of(value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        return f"Tensor({self.array!r}{device}{grad})"

    def _repr_html_(self) -> str:
        """For notebooks: what it is, and then its elements."""
        facts = {
            "shape": " x ".join(map(str, self.shape)) or "one element",
            "dtype": self.dtype,
            "device": self.device,
            "keys": ", ".join(map(str, self.key_set)),
            **({"requires_grad": True} if self.requires_grad else {}),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in facts.items())
        return f"<table>{rows}</table><pre>{html.escape(str(self.array))}</pre>"


def _array_of(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


def _index_of(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_array_of, index))
    return _array_of(index)


arrays.register_tensor_type(Tensor)
