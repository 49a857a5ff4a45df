"""A tensor that holds a value and the steps that make it a view of its base.

Mirrors ``ATen/FunctionalTensorWrapper.h``. Values are never modified: a write to a functional
tensor replaces its value. The base and its other views are then out of date, and are regenerated
when they are next read.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch import arrays
from opdispatch.autograd.autograd_meta import AutogradMeta
from opdispatch.errors import ArgumentError
from opdispatch.functorch.functionalization.functional_storage import FunctionalStorage
from opdispatch.functorch.functionalization.view_meta import IDENTITY, Strided, ViewMeta, view_of
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET, DispatchKeySet
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.functorch.functionalization.functional_storage import StorageLevel

_K = DispatchKey
ABOVE = AUTOGRAD_KEYSET | DispatchKeySet.of(
    _K.ADInplaceOrView, _K.ZeroTensor, _K.Negative, _K.Conjugate
)
"""Keys of higher priority than Functionalize that apply to values; a level excludes them."""
_FUNCTIONALIZE = DispatchKeySet.of(_K.Functionalize)


class FunctionalTensor(Tensor, is_below=True):
    """Stand-in for an input or intermediate tensor of a functionalized function.

    It behaves like any ``Tensor``; its ``array`` is that of its value. A NumPy array of it is
    read-only, since writes that bypass operators could not be tracked. Not thread-safe.
    """

    __slots__ = ("_generation", "storage", "value", "views")

    # A plain tensor stores these as attributes; here they are computed from the value.
    __hash__ = Tensor.__hash__

    def __init__(
        self, value: Any, storage: FunctionalStorage, views: tuple[ViewMeta, ...] = ()
    ) -> None:
        self.value = value
        """The value, which may be out of date; its shape, dtype and device are always valid."""
        self.storage = storage
        self.views = views
        """The view steps from its base, in order; empty for the base itself."""
        self._generation = storage.generation
        bits = arrays.key_bits_of(value)
        self.key_bits = (DispatchKeySet(bits) - ABOVE | _FUNCTIONALIZE).bits

    @classmethod
    def of(cls, value: Any, level: StorageLevel) -> FunctionalTensor:
        """Return a functional tensor with a new storage."""
        return cls(value, FunctionalStorage(value, level))

    @property
    def level(self) -> StorageLevel:
        """The level that it belongs to."""
        return self.storage.level

    @property
    def is_written(self) -> bool:
        """Whether its elements have been written to."""
        return self.storage.generation > 0

    def sync(self) -> Any:
        """Return the value, regenerated first if the storage was written to since."""
        storage = self.storage
        if self._generation != storage.generation:
            with storage.level.below():
                storage.apply_updates()
                self.value = view_of(storage.base, self.views)
            self._generation = storage.generation
        return self.value

    def write(self, value: Any) -> None:
        """Write ``value``, of the same shape and dtype; aliases are out of date afterwards."""
        self.storage.add_update(self.views, value)
        self.sync()  # at once, as in PyTorch, so that a loop of writes accumulates no values

    def view(self, value: Any, view: ViewMeta) -> FunctionalTensor:
        """Return a view of this tensor by one more step, which makes ``value`` from ``self.value``.

        The view is of the same generation, so it is out of date if this tensor is.
        """
        made = FunctionalTensor(value, self.storage, (*self.views, view))
        made._generation = self._generation
        return made

    def strided(self) -> Strided | None:
        """Return a placeholder with the strides of this tensor, or None if they are not known."""
        return self.storage.strided(self.views)

    # -- as a tensor ----------------------------------------------------------------------------

    @property
    def array(self) -> Any:
        """The array of the value, which must not be written to."""
        value = self.sync()
        array = value.array if isinstance(value, Tensor) else value
        if type(array) is np.ndarray:
            array = array.view()
            array.flags.writeable = False
        return array

    @property
    def autograd_meta(self) -> AutogradMeta | None:
        """Its value's."""
        meta: AutogradMeta | None = getattr(self.sync(), "autograd_meta", None)
        return meta

    @autograd_meta.setter
    def autograd_meta(self, meta: AutogradMeta | None) -> None:
        self._tensor("part of a graph").autograd_meta = meta

    @property
    def requires_grad_flag(self) -> bool:
        """Its value's."""
        return bool(getattr(self.sync(), "requires_grad_flag", False))

    @requires_grad_flag.setter
    def requires_grad_flag(self, flag: bool) -> None:
        self._tensor("part of a graph").requires_grad_flag = flag

    @property
    def device(self) -> str:
        """The device of the value."""
        return arrays.device_of(self._seen)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = np.dtype(self._seen.dtype)
        return dtype

    @property
    def shape(self) -> Any:
        """The extent of each dimension, in elements."""
        return tuple(self._seen.shape)

    def detach_here(self) -> Tensor:
        """Return a view that records nothing."""
        with self.level.below():
            detached = self._tensor("detached").detach()
        return self.view(
            detached,
            ViewMeta(lambda base: base.detach(), lambda base, mutated: mutated, lambda x: x),
        )

    def __copy__(self) -> Tensor:
        return self.view(self.value, IDENTITY)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return FunctionalTensor.of(copy.deepcopy(self.sync(), memo), self.level)

    def __repr__(self) -> str:
        return f"Functional{super().__repr__()}"

    @property
    def _seen(self) -> Any:
        """An array of the right shape, dtype and device, which writes never change."""
        value = self.value
        while isinstance(value, FunctionalTensor):
            value = value.value
        return value.array if isinstance(value, Tensor) else value

    def _tensor(self, what: str) -> Tensor:
        value = self.sync()
        if not isinstance(value, Tensor):
            raise ArgumentError(f"a plain array cannot be {what}; convert it with Tensor(array)")
        return value

    def _of(self, array: Any, *, is_view: bool = False) -> Any:
        return Tensor(array)


arrays.register_tensor_type(FunctionalTensor)
