"""The array of a tensor inside a function transform: it wraps a tensor of the level below.

Mirrors ``BatchedTensorImpl`` and ``TensorWrapper`` of PyTorch's functorch. Those are tensors; these
take the place of a tensor's array, so the tensor is an ordinary ``Tensor`` with shape, dtype,
autograd state and dispatch keys. The keys ensure that no backend kernel receives one.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from opdispatch.arrays.fake_array import FakeArray
from opdispatch.errors import TransformError


class LevelArray:
    """The array of a tensor that exists only within a function transform.

    ``value`` is the tensor of the level below; ``layer`` is the level that the array belongs to.
    """

    __slots__ = ("__weakref__", "dtype", "is_batched", "key_bits", "layer", "shape", "value")

    def __init__(
        self, layer: Any, value: Any, shape: tuple[int, ...], is_batched: bool, key_bits: int
    ) -> None:
        self.key_bits = key_bits
        """The key bits of a tensor with this array."""
        self.layer = layer
        self.value = value
        self.shape = shape
        """Shape as seen by the transformed function, without hidden batch dimensions."""
        self.dtype: np.dtype[Any] = value.dtype
        self.is_batched = is_batched
        """Whether this or a lower level is batched; control flow cannot depend on its elements."""

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> str:
        """The device of the elements."""
        value = self.value
        while isinstance(array := getattr(value, "array", None), LevelArray):
            value = array.value
        return "cpu" if type(array) is np.ndarray else str(value.device)

    def detached(self) -> LevelArray:
        """Return a copy over ``value.detach()``, detached at this and every lower level."""
        made = object.__new__(type(self))
        for cls in type(self).__mro__:
            for name in set(getattr(cls, "__slots__", ())) - {"__weakref__"}:
                setattr(made, name, getattr(self, name))
        if hasattr(self.value, "detach"):  # a remote tensor's autograd history is in its process
            made.value = self.layer.detach_below(self.value)
        return made

    def item(self) -> Any:
        """Return the only element as a Python number. Raises TransformError if batched."""
        return self._read("item()").item()

    def __bool__(self) -> bool:
        return bool(self._read("bool()"))

    def __int__(self) -> int:
        return int(self._read("int()"))

    def __float__(self) -> float:
        return float(self._read("float()"))

    def __complex__(self) -> complex:
        return complex(self._read("complex()"))

    def __index__(self) -> int:
        return int(self._read("operator.index()").__index__())

    def _read(self, how: str) -> Any:
        if self.is_batched:
            raise TransformError(
                f"{how} cannot read a number out of a batched tensor inside vmap: each sample has "
                "a different one",
                hint="use array_api.where, or keep the number in a tensor",
            )
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise TransformError(
            f"{self!r} cannot become a NumPy array: the transform would not see NumPy's work",
            hint="use functions of opdispatch.array_api",
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TransformError(
            f"{self!r} exists only inside a function transform, and cannot be copied or pickled",
            hint="use array_api.asarray(x, copy=True)",
        )

    def __dlpack__(self, **options: Any) -> NoReturn:
        raise TransformError(
            f"{self!r} cannot be exported by DLPack: the transform would not see what another "
            "library computes",
            hint="use functions of opdispatch.array_api",
        )


def is_batched(tensor: Any) -> bool:
    """Return whether ``vmap`` has batched a tensor at any level, so its elements are unreadable."""
    array = getattr(tensor, "array", None)
    return isinstance(array, LevelArray) and array.is_batched


def has_elements(tensor: Any) -> bool:
    """Return whether control flow may depend on the elements of a tensor.

    False for batched tensors, whose elements differ between samples, and for meta and fake
    tensors, which have none.
    """
    if is_batched(tensor) or getattr(tensor, "device", "") == "meta":
        return False
    array = getattr(tensor, "array", None)
    while isinstance(array, LevelArray):
        array = getattr(array.value, "array", None)
    return not isinstance(array, FakeArray)
