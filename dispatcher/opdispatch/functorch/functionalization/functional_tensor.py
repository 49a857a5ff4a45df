"""A tensor that holds a value, and the steps that make it a view of its base.

Mirrors ``ATen/FunctionalTensorWrapper.h``. A value is never written to. A functional tensor that is
written to holds another one from then on; that its base and the other views of that are out of date
is noticed, and put right, when they are looked at.
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
"""The keys that come before Functionalize, and are for values: a level excludes them."""
_FUNCTIONALIZE = DispatchKeySet.of(_K.Functionalize)


class FunctionalTensor(Tensor, is_below=True):
    """Tensor that a function is given in place of another while it is functionalized.

    It is a ``Tensor`` in all that one can see: its ``array`` is that of its value. NumPy's is for
    reading only, since a write that no operator makes would not be noticed. For one thread at a
    time.
    """

    __slots__ = ("_generation", "storage", "value", "views")

    # Those of a plain tensor are attributes; here they are what the value has.
    __hash__ = Tensor.__hash__

    def __init__(
        self, value: Any, storage: FunctionalStorage, views: tuple[ViewMeta, ...] = ()
    ) -> None:
        self.value = value
        """Its value, which may be out of date, but for shape, dtype and device."""
        self.storage = storage
        self.views = views
        """How it is made of its base, one step after the other; none: it is the base."""
        self._generation = storage.generation
        bits = arrays.key_bits_of(value)
        self.key_bits = (DispatchKeySet(bits) - ABOVE | _FUNCTIONALIZE).bits

    @classmethod
    def of(cls, value: Any, level: StorageLevel) -> FunctionalTensor:
        """Return a functional tensor with elements of its own."""
        return cls(value, FunctionalStorage(value, level))

    @property
    def level(self) -> StorageLevel:
        """The call that it belongs to."""
        return self.storage.level

    @property
    def is_written(self) -> bool:
        """Whether its elements have been written to."""
        return self.storage.generation > 0

    def sync(self) -> Any:
        """Return its value, regenerated if the elements were written to since."""
        storage = self.storage
        if self._generation != storage.generation:
            with storage.level.below():
                storage.apply_updates()
                self.value = view_of(storage.base, self.views)
            self._generation = storage.generation
        return self.value

    def write(self, value: Any) -> None:
        """Make ``value``, of its shape and dtype, what it holds; aliases will notice."""
        self.storage.add_update(self.views, value)
        self.sync()  # at once, as in PyTorch: so that a loop of writes keeps no values

    def view(self, value: Any, view: ViewMeta) -> FunctionalTensor:
        """Return a view of this one, made by one more step that makes ``value`` of ``self.value``.

        It is as much out of date as this one.
        """
        made = FunctionalTensor(value, self.storage, (*self.views, view))
        made._generation = self._generation
        return made

    def strided(self) -> Strided | None:
        """Return a placeholder with its strides, where there are views.

        None if they are not known.
        """
        return self.storage.strided(self.views)

    # -- as a tensor ----------------------------------------------------------------------------

    @property
    def array(self) -> Any:
        """The elements of its value, which are not to be written to."""
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
        """Where its value is."""
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
        """An array of its shape, dtype and device: a write changes none of them."""
        value = self.value
        while isinstance(value, FunctionalTensor):
            value = value.value
        return value.array if isinstance(value, Tensor) else value

    def _tensor(self, what: str) -> Tensor:
        value = self.sync()
        if not isinstance(value, Tensor):
            raise ArgumentError(f"a plain array cannot be {what}; make a Tensor of it")
        return value

    def _of(self, array: Any, *, is_view: bool = False) -> Any:
        return Tensor(array)


arrays.register_tensor_type(FunctionalTensor)
