"""``Tensor``: an array of some backend, with dispatch keys.

Mirrors the part of ``c10::TensorImpl`` that the dispatcher uses: the key set, computed once from
the device, the layout and the features enabled for the tensor.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import numpy as np

from opdispatch import arrays
from opdispatch.arrays import CPU_BITS, FAKE_BIT, FakeArray, key_bits_of
from opdispatch.arrays.level_array import LevelArray
from opdispatch.arrays.math_bits import MATH_BITS
from opdispatch.arrays.zero_array import ZERO_TENSOR
from opdispatch.autograd.autograd_meta import AutogradMeta, BaseRequiresGrad
from opdispatch.autograd.inference_tensor import make_inference
from opdispatch.autograd.to_copy import record_move
from opdispatch.autograd.variable import (
    Variable,
    check_differentiable,
    counter_of,
    meta_of,
)
from opdispatch.autograd.variable_methods import VariableMethods
from opdispatch.errors import ArgumentError, AutogradError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.grad_mode import is_inference_mode_enabled, no_grad
from opdispatch.local_state.lazy_imports import (
    array_namespace,
    array_operators,
    call_below_python,
)
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.local_state.tracing_state import is_traced, note_reading
from opdispatch.tensors.dimension_names import NAMED_BIT, TensorNames, names_of_new
from opdispatch.tensors.exchange import TensorExchange
from opdispatch.tensors.layouts import TensorLayouts
from opdispatch.tensors.math_bits import TensorMathBits
from opdispatch.tensors.operators import TensorOperators

T = TypeVar("T", bound="Tensor")
_AUTOCAST_KEYS = {
    backend: DispatchKey[f"Autocast{backend.name}"]
    for backend in BackendComponent
    if f"Autocast{backend.name}" in DispatchKey.__members__
}
_SHARING_AUTOGRAD = (BackendComponent.HIP, BackendComponent.VE)
_OF_LEVELS = DispatchKeySet.of(DispatchKey.FuncTorchBatched, DispatchKey.FuncTorchGradWrapper).bits
_KEPT_BITS = FAKE_BIT | MATH_BITS | ZERO_TENSOR | _OF_LEVELS
_ASKS_MODES = DispatchKeySet.of(DispatchKey.Python, DispatchKey.PreDispatch).bits
_LAYOUT_KEYS = frozenset(layout.functionality for layout in arrays.LAYOUTS.values())


def key_set_of_backend(
    backend: BackendComponent, functionality: DispatchKey = DispatchKey.Dense
) -> DispatchKeySet:
    """Return the keys that PyTorch gives a plain tensor of ``backend``.

    They are Dense or the key of another layout, ADInplaceOrView, the backend's Autograd key and, if
    it has one, its Autocast key. HIP and VE share AutogradOther. A nested tensor also has
    AutogradNestedTensor.
    """
    keys = DispatchKeySet.of(to_runtime_key(functionality, backend), DispatchKey.ADInplaceOrView)
    keys = keys.add(
        DispatchKey.AutogradOther
        if backend in _SHARING_AUTOGRAD
        else to_runtime_key(DispatchKey.AutogradFunctionality, backend)
    )
    if functionality is DispatchKey.NestedTensor:
        keys = keys.add(DispatchKey.AutogradNestedTensor)
    return keys.add(_AUTOCAST_KEYS[backend]) if backend in _AUTOCAST_KEYS else keys


@functools.cache
def bits_of_tensor(bits: int) -> int:
    """Return the key bits of a tensor over an array with key bits ``bits``."""
    keys = DispatchKeySet(bits)
    if keys.highest_backend_key is None:
        return bits
    functionality = keys.highest_functionality_key
    if functionality not in _LAYOUT_KEYS:
        functionality = DispatchKey.Dense
    plain = key_set_of_backend(keys.highest_backend_key, functionality)
    return plain.bits | bits & _KEPT_BITS


def _is_watched() -> bool:
    """Return whether a mode or a profiler observes this task's calls."""
    state = LOCAL_STATE.get()
    return state.observer is not None or bool(state.included & _ASKS_MODES)


def _plain_array(array: Any) -> Any:
    """Return the backend's array underlying ``array``."""
    if isinstance(array, Tensor):
        return array.array
    if isinstance(array, np.generic | np.matrix):  # indexing a matrix always returns two dimensions
        return np.asarray(array)
    if arrays.is_foreign(array) and arrays.find_backend(type(array)) is None:
        return arrays.adopt(array)
    return array


class Tensor(
    TensorExchange, TensorLayouts, TensorMathBits, TensorNames, TensorOperators, VariableMethods
):
    """An array with the dispatch keys of a PyTorch tensor.

    ``array`` is an array of any backend (NumPy, CuPy or a custom one) or of another layout, such as
    a SciPy sparse array. It is shared, not copied; arrays of other libraries, such as PyTorch or
    JAX, are imported with DLPack. ``keys`` overrides the keys derived from the array's backend and
    layout. ``names`` are the names of the dimensions: see ``rename``.

    A tensor is an array in the sense of the array API standard; its Python operators call those of
    the library ``array``. NumPy's functions accept tensors and return plain arrays. Raises
    TypeError if ``array`` is not an array, DeviceError if its elements cannot be read, and
    ArgumentError for invalid names.
    """

    def __init_subclass__(cls, *, is_below: bool = False, **options: Any) -> None:
        """Give tensors of a user-defined subclass the key Python, unless ``is_below``.

        ``is_below`` marks subclasses whose tensors are passed to kernels unchanged. See
        ``functionalities/python_fallback.py``.
        """
        super().__init_subclass__(**options)
        if not is_below and "key_bits" not in vars(cls):
            type.__setattr__(cls, "key_bits", _KEY_BITS_OF_CLASSES)
            cls._is_plain = False
        if "__new__" in vars(cls) and cls.__init__ is Tensor.__init__:
            type.__setattr__(cls, "__init__", _init_unless_made)

    __module__ = "opdispatch"  # the public name, in messages and in pickles
    __slots__ = (
        "__weakref__",
        "_names",
        "array",
        "autograd_meta",
        "key_bits",
        "requires_grad_flag",
    )

    array: Any
    key_bits: int
    autograd_meta: AutogradMeta | None
    requires_grad_flag: bool | BaseRequiresGrad
    _is_plain: ClassVar[bool] = True
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self,
        array: Any,
        *,
        keys: DispatchKeySet | None = None,
        requires_grad: bool = False,
        names: Sequence[str | None] | None = None,
    ) -> None:
        if type(array) is np.ndarray:
            bits = CPU_BITS
        else:
            array = _plain_array(array)
            bits = key_bits_of(array)
        self.array = array
        self.key_bits = bits_of_tensor(bits) if keys is None else keys.bits
        self.autograd_meta = None
        self.requires_grad_flag = requires_grad
        if requires_grad:
            check_differentiable(self.array.dtype, requires_grad)
        if names is not None and (chosen := names_of_new(names, self.ndim)) is not None:
            self._names = chosen
            self.key_bits |= NAMED_BIT

    @property
    def key_set(self) -> DispatchKeySet:
        """The tensor's dispatch keys."""
        return DispatchKeySet(self.key_bits)

    @property
    def device(self) -> str:
        """``"cpu"``, or ``"cuda:N"`` for an array on the N-th GPU."""
        return "cpu" if type(self.array) is np.ndarray else arrays.device_of(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        dtype: np.dtype[Any] = self.array.dtype
        return dtype if type(self.array) is np.ndarray else np.dtype(dtype)

    @property
    def shape(self) -> Any:
        """The extent of each dimension, in elements: a tuple of ints.

        For a nested tensor, it has None for the dimension in which the components differ.
        """
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def to(self, device: str) -> Tensor:
        """Copy the tensor to ``device``; return it as is if it is already there.

        The copy is recorded by autograd: gradients flow back to the original device. Modes and
        profilers see it as a call of ``array::astype`` with ``device``, if that operator has a
        kernel for the tensor. A device without an index, such as ``"cuda"``, means the current
        device of that type. Raises DeviceError if the device does not exist, and DeviceMemoryError
        if it is out of memory.
        """
        kind, number = arrays.split_device(device)
        here, place = arrays.split_device(self.device)
        if kind == here and number in (None, place):
            return self
        if isinstance(self.array, FakeArray):  # call an operator, which can be recorded
            there: Tensor = array_namespace().astype(self, self.dtype, device=device)
            return there
        moved: Any
        if _is_watched() and self._can_be_converted():
            with no_grad():  # record_move below records the transfer
                moved = array_namespace().astype(self, self.dtype, device=device)
        else:
            note_reading(self, "to() of a tensor")
            moved = new_tensor(arrays.on_device(self.array, device))
        if type(moved) is Tensor:  # a mode may return anything
            record_move(self, moved)
        result: Tensor = moved
        return result

    def cpu(self) -> Tensor:
        """Return ``to("cpu")``."""
        return self.to("cpu")

    def _can_be_converted(self) -> bool:
        """Return whether the tensor has only plain keys and ``array::astype`` a kernel for them."""
        array = self.array
        backend = self.key_set.highest_backend_key
        if backend is None or arrays.find_backend(type(array)) is None:
            return False
        if type(array) is arrays.MetaArray or self.key_bits != bits_of_tensor(key_bits_of(array)):
            return False
        key = to_runtime_key(DispatchKey.Dense, backend)
        return bool(array_operators().astype.default.has_kernel_for_dispatch_key(key))

    def detach(self) -> Tensor:
        """Return a tensor without gradients that shares the elements and their version counter."""
        if is_traced(self):  # call an operator, which is recorded
            traced: Tensor = array_operators().detach.default(self)
            return traced
        return self.detach_here()

    def detach_here(self) -> Tensor:
        """Detach the tensor without an operator call; the kernel of ``detach`` uses this."""
        array = self.array
        if isinstance(array, LevelArray):
            array = array.detached()
        detached = self._over(array, self.key_bits, None if self._is_plain else self._attributes())
        meta = detached.autograd_meta = AutogradMeta()
        meta.counter = counter_of(self)
        if self.key_bits & NAMED_BIT:
            detached._names = self.names
        return detached

    @classmethod
    def _over(
        cls, array: Any, key_bits: int | None, attributes: dict[str, Any] | None = None
    ) -> Self:
        """Create a tensor of this class over ``array`` without calling the class's ``__init__``.

        ``attributes`` are the attributes that the subclass has added.
        """
        tensor: Self = object.__new__(cls)
        if key_bits is not None and type(array) is np.ndarray:
            tensor.array = array
            tensor.key_bits = key_bits
            tensor.autograd_meta = None
            tensor.requires_grad_flag = False
        else:
            keys = None if key_bits is None else DispatchKeySet(key_bits)
            Tensor.__init__(tensor, array, keys=keys)
        for name, value in (attributes or {}).items():
            setattr(tensor, name, value)
        return tensor

    def _attributes(self) -> dict[str, Any]:
        """Return the attributes that a subclass has added, in ``__dict__`` and in its slots."""
        found = dict(getattr(self, "__dict__", {}))
        for cls in type(self).__mro__:
            if cls is Tensor:
                break
            names = vars(cls).get("__slots__", ())
            for name in (names,) if isinstance(names, str) else names:
                if name not in ("__dict__", "__weakref__") and hasattr(self, name):
                    found[name] = getattr(self, name)
        return found

    @staticmethod
    def _make_subclass(cls: type[T], data: Any, require_grad: bool = False) -> T:
        """Create a tensor of class ``cls`` that shares the elements of ``data``; for ``__new__``.

        Raises AutogradError if ``require_grad`` is set for a dtype that cannot have gradients. As
        ``torch.Tensor._make_subclass``.
        """
        array = data.array if isinstance(data, Tensor) else _plain_array(data)
        check_differentiable(array.dtype, require_grad)
        made = cls._over(array, None)
        made.requires_grad_flag = require_grad
        return made

    @staticmethod
    def _make_wrapper_subclass(
        cls: type[T],
        size: Sequence[int],
        *,
        dtype: Any = "float32",
        device: str = "cpu",
        requires_grad: bool = False,
        **others: Any,
    ) -> T:
        """Create a tensor of class ``cls`` without elements, which wraps data of the class's own.

        It has the keys of tensors on ``device``, and every operator calls its
        ``__torch_dispatch__``; kernels cannot access its elements. ``others`` accepts the strides,
        the layout and PyTorch's other parameters, and ignores them. Raises ArgumentError for a
        class without a ``__torch_dispatch__``. As ``torch.Tensor._make_wrapper_subclass``.
        """
        if not handles_operators(cls):
            raise ArgumentError(
                f"{cls.__qualname__} must define __torch_dispatch__: its tensors would have no "
                "elements, and no handler to say what operators do with them"
            )
        array = FakeArray(tuple(size), dtype, device)
        check_differentiable(array.dtype, requires_grad)
        made = cls._over(array, bits_of_tensor(array.key_bits & ~FAKE_BIT))
        made.requires_grad_flag = requires_grad
        return made

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator with the key Python and all keys above it disabled.

        Subclasses call it as ``super().__torch_dispatch__(func, types, args, kwargs)``: kernels get
        their tensors as plain ones, and no gradients are recorded. It is not called for subclasses
        that do not override it.
        """
        return call_below_python()(func, args, kwargs or {})

    def __copy__(self) -> Tensor:
        """Return a leaf that shares the elements and their version counter."""
        copied = self.detach()
        copied.requires_grad_flag = bool(self.requires_grad_flag)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a leaf with copies of the elements and of ``grad``.

        Raises AutogradError for a tensor that is not a leaf.
        """
        if not self.is_leaf:
            raise AutogradError(
                f"a tensor with grad_fn {self.grad_fn} cannot be deep-copied; expected a leaf",
                hint="copy tensor.detach()",
            )
        note_reading(self, "a tensor that is copied")
        build, state, *attributes = self.__reduce_ex__(2)
        copied: Tensor = build(*copy.deepcopy(state, memo))
        memo[id(self)] = copied
        if self.grad is not None:
            meta_of(copied).grad = copy.deepcopy(self.grad, memo)
        for name, value in self._attributes().items() if attributes else ():
            setattr(copied, name, copy.deepcopy(value, memo))
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Support ``pickle``: like PyTorch's, the restored tensor is a leaf without ``grad``."""
        note_reading(self, "a tensor that is pickled")
        names = self.names if self.key_bits & NAMED_BIT else None
        keys = None if self.is_inference() else self.key_bits
        state = (type(self), self.array, keys, names, self.requires_grad)
        attributes = self._attributes()
        if not attributes:
            return (_rebuilt, state)
        if getattr(self, "__dict__", None) == attributes:
            return (_rebuilt, state, attributes)
        return (_rebuilt, state, (None, attributes))  # of slots

    def to_device(self, device: str, /, *, stream: Any = None) -> Tensor:
        """Call ``to``, under the array API standard's name. Raises ArgumentError for a stream."""
        if stream is not None:
            raise ArgumentError("to_device takes no stream; it uses the current one of the device")
        return self.to(device)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        names = f", names={self.names}" if self.key_bits & NAMED_BIT else ""
        return f"Tensor({self._describe_array()}{device}{names}{grad})"

    def _repr_html_(self) -> str:
        """Return an HTML representation for notebooks: the properties, then the elements."""
        import html  # imported here: it loads a large table that few programs need

        facts = {
            "shape": " x ".join(map(str, self.shape)) or "one element",
            "dtype": self.dtype,
            "device": self.device,
            "layout": self.layout,
            "keys": ", ".join(map(str, self.key_set)),
            **({"requires_grad": True} if self.requires_grad else {}),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in facts.items())
        elements = self._describe_array() if self._other_layout else str(self.array)
        return f"<table>{rows}</table><pre>{html.escape(elements)}</pre>"


def handles_operators(cls: type) -> bool:
    """Return whether calls with instances of ``cls`` are passed to its ``__torch_dispatch__``.

    False for a class that inherits the method of ``Tensor``, which exists for ``super()`` calls.
    """
    own = getattr(cls, "__torch_dispatch__", None)
    return own is not None and getattr(own, "__func__", own) is not _HANDLES_NOTHING


Variable.plain_class = Tensor
_HANDLES_NOTHING = Tensor.__dict__["__torch_dispatch__"].__func__


def _init_unless_made(self: Tensor, *args: Any, **kwargs: Any) -> None:
    """Call ``Tensor.__init__``, unless ``__new__`` has already initialized the tensor."""
    if not hasattr(self, "array"):
        Tensor.__init__(self, *args, **kwargs)


_PYTHON = DispatchKeySet.of(DispatchKey.Python, DispatchKey.PythonTLSSnapshot).bits
_OWN_KEY_BITS: Any = Tensor.__dict__["key_bits"]
_KEY_BITS_OF_CLASSES = property(
    _OWN_KEY_BITS.__get__,
    lambda self, bits: _OWN_KEY_BITS.__set__(self, bits | _PYTHON),
    doc="The word of the tensor's dispatch keys, with Python among them.",
)


def new_tensor(array: Any, *, requires_grad: bool = False) -> Tensor:
    """Create a tensor over an array that is not the result of a kernel.

    In inference mode, it is an inference tensor.
    """
    tensor = Tensor(array, requires_grad=requires_grad)
    if is_inference_mode_enabled():
        make_inference(tensor)
    return tensor


def of_plain_class(tensor: Tensor) -> Tensor:
    """Convert a tensor of a subclass to a ``Tensor`` with the same elements, version and keys."""
    if type(tensor) is Tensor:
        return tensor
    plain = Tensor(tensor.array, keys=DispatchKeySet(tensor.key_bits & ~_PYTHON))
    meta_of(plain).counter = counter_of(tensor)
    return plain


def _rebuilt(
    cls: type[Tensor], array: Any, key_bits: int | None, names: Any, requires_grad: bool
) -> Tensor:
    """Restore a pickled tensor; in inference mode, as an inference tensor."""
    tensor = cls._over(array, key_bits)
    if is_inference_mode_enabled():
        make_inference(tensor)
    tensor.requires_grad_flag = requires_grad
    if names is not None:
        tensor._names = names
    return tensor


arrays.register_tensor_type(Tensor)
