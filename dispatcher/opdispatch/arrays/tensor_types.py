"""Types that count as tensors, and the dispatch keys of their values.

Plain arrays are tensors with the key of their backend alone: a NumPy array (or NumPy scalar, as a
0-d tensor) has CPU, a CuPy array has CUDA. Sparse arrays of SciPy and CuPy are tensors with the key
of their layout and backend, such as SparseCPU. Instances of other types have their keys in an int
attribute ``key_bits``: ``opdispatch.Tensor``, quantized and nested arrays, and types that are
registered with ``register_tensor_type``.
"""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.backends import PLAIN_KEY_BITS, backends, find_backend
from opdispatch.arrays.fake_array import FakeArray
from opdispatch.arrays.layouts import find_layout
from opdispatch.arrays.lazy_array import LazyArray
from opdispatch.arrays.level_array import LevelArray
from opdispatch.arrays.nested import NestedArray
from opdispatch.arrays.quantized import QuantizedArray
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import bits_of_key

_DENSE = DispatchKey.Dense
CPU_BITS = bits_of_key(to_runtime_key(_DENSE, BackendComponent.CPU))
CUDA_BITS = bits_of_key(to_runtime_key(_DENSE, BackendComponent.CUDA))

_types_with_keys: tuple[type, ...] = (
    QuantizedArray,
    NestedArray,
    FakeArray,
    LazyArray,
    LevelArray,
)


# Names in error messages for types that are not public.
_words: dict[type, str] = {}


def register_tensor_type(cls: type, *, described_as: str = "") -> None:
    """Make instances of ``cls`` tensors; each must have an int attribute ``key_bits``.

    Error messages call an instance ``described_as``, or by its type if that is empty.
    """
    global _types_with_keys
    if cls not in _types_with_keys:
        _types_with_keys = (*_types_with_keys, cls)
    if described_as:
        _words[cls] = described_as


def _learn_plain_type(cls: type) -> int | None:
    """Return the key bits of a plain array type and cache them; None for any other type."""
    bits: int | None = None
    backend = find_backend(cls)
    if backend is not None:
        bits = backend.key_bits
    elif (layout := find_layout(cls)) is not None:
        component = layout.component_of(cls)
        bits = layout.key_bits(component) if component is not None else None
    if bits is not None and (backend is None or backend in backends()):
        PLAIN_KEY_BITS[cls] = bits  # also keeps the class alive
    return bits


def find_key_bits(value: Any) -> int | None:
    """Return the dispatch key word of a tensor; None if ``value`` is not a tensor."""
    cls = type(value)
    bits = PLAIN_KEY_BITS.get(cls)
    if bits is not None:
        return bits
    if issubclass(cls, _types_with_keys):
        return int(value.key_bits)
    return _learn_plain_type(cls)


def key_bits_of(value: Any) -> int:
    """Return the dispatch key word of a tensor. Raises TypeError if ``value`` is not one."""
    bits = find_key_bits(value)
    if bits is None:
        raise TypeError(
            "expected Tensor (numpy.ndarray, cupy.ndarray or opdispatch.Tensor), "
            f"got {describe_type(value)}{way_to_tensor(value)}"
        )
    return bits


def way_to_tensor(value: Any) -> str:
    """Return a hint for arrays in unsupported sparse formats such as csc; empty for others."""
    return "; convert it with tocoo() or tocsr()" if hasattr(type(value), "tocoo") else ""


def convert_tensor(value: Any) -> Any:
    """Return ``value`` as it is. Raises TypeError if it is not a tensor."""
    if type(value) not in PLAIN_KEY_BITS:
        key_bits_of(value)
    return value


def describe_type(value: Any) -> str:
    """Return the type of ``value`` for a message: ``int``, ``torch.Tensor``, ``NoneType``."""
    cls = type(value)
    if cls in _words:
        return _words[cls]
    return (
        cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    )
