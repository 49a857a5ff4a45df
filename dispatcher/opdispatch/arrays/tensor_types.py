"""What counts as a tensor, and which dispatch keys it has.

Plain arrays are tensors as they are, with the key of their backend alone: a NumPy array (or
NumPy scalar, as a 0-d tensor) has CPU, a CuPy array has CUDA. Other types carry their keys
themselves, in an int attribute ``key_bits``: ``opdispatch.Tensor``, and types that another
room of the project registers.
"""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backends import PLAIN_KEY_BITS, find_backend
from opdispatch.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.dispatch_key_set import bits_of_key

_DENSE = DispatchKey.Dense
CPU_BITS = bits_of_key(to_runtime_key(_DENSE, BackendComponent.CPU))
CUDA_BITS = bits_of_key(to_runtime_key(_DENSE, BackendComponent.CUDA))

_types_with_keys: tuple[type, ...] = ()


def register_tensor_type(cls: type) -> None:
    """From now on, instances of ``cls`` are tensors; each has an int attribute ``key_bits``."""
    global _types_with_keys
    if cls not in _types_with_keys:
        _types_with_keys = (*_types_with_keys, cls)


def _learn_plain_type(cls: type) -> int | None:
    """The key bits of a plain array type that has not been seen before, or None."""
    backend = find_backend(cls)
    if backend is None:
        return None
    PLAIN_KEY_BITS[cls] = backend.key_bits
    return backend.key_bits


def find_key_bits(value: Any) -> int | None:
    """The dispatch key word of a tensor; None if ``value`` is no tensor."""
    cls = type(value)
    bits = PLAIN_KEY_BITS.get(cls)
    if bits is not None:
        return bits
    if issubclass(cls, _types_with_keys):
        return int(value.key_bits)
    return _learn_plain_type(cls)


def key_bits_of(value: Any) -> int:
    """The dispatch key word of a tensor. Raises TypeError if ``value`` is none."""
    bits = find_key_bits(value)
    if bits is None:
        raise TypeError(
            "expected Tensor (numpy.ndarray, cupy.ndarray or opdispatch.Tensor), "
            f"got {describe_type(value)}"
        )
    return bits


def convert_tensor(value: Any) -> Any:
    """Returns ``value`` as it is. Raises TypeError if it is no tensor."""
    key_bits_of(value)
    return value


def describe_type(value: Any) -> str:
    """The type of ``value`` for a message: ``int``, ``torch.Tensor``, ``NoneType``."""
    cls = type(value)
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
