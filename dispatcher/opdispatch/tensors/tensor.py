"""A tensor that knows its dispatch keys: an array of some backend, and more.

Mirrors the part of ``c10::TensorImpl`` that the dispatcher looks at: the key set that it
computes once, from the device and from what is switched on for the tensor.
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
from opdispatch.tensors.exchange import TensorExchange
from opdispatch.tensors.layouts import TensorLayouts
from opdispatch.tensors.math_bits import TensorMathBits
from opdispatch.tensors.names import NAMED_BIT, TensorNames, names_of_new
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

    Dense or the key of another layout, ADInplaceOrView, Autograd and, where the backend has one,
    its Autocast key. Those of HIP and VE share AutogradOther. A nested tensor has
    AutogradNestedTensor, too.
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
    """Return the dispatch key word of a tensor over an array that has this one."""
    keys = DispatchKeySet(bits)
    if keys.highest_backend_key is None:
        return bits
    functionality = keys.highest_functionality_key
    if functionality not in _LAYOUT_KEYS:
        functionality = DispatchKey.Dense
    plain = key_set_of_backend(keys.highest_backend_key, functionality)
    return plain.bits | bits & _KEPT_BITS


def _is_watched() -> bool:
    """Return whether the calls of this task are observed: by a mode, or a profile."""
    state = LOCAL_STATE.get()
    return state.observer is not None or bool(state.included & _ASKS_MODES)


def _plain_array(array: Any) -> Any:
    """Return the array behind a tensor, as an array of a backend."""
    if isinstance(array, Tensor):
        return array.array
    if isinstance(array, np.generic | np.matrix):  # of which any index has two dimensions
        return np.asarray(array)
    if arrays.is_foreign(array) and arrays.find_backend(type(array)) is None:
        return arrays.adopt(array)
    return array


class Tensor(
    TensorExchange, TensorLayouts, TensorMathBits, TensorNames, TensorOperators, VariableMethods
):
    """An array with the dispatch keys of a PyTorch tensor.

    ``array`` is an array of any backend (NumPy, CuPy, one of your own), or of another layout than
    the dense one (SciPy's sparse arrays, ...), which is shared and not copied; one of another
    library's, such as PyTorch or JAX, is taken over by DLPack. ``keys`` overrides the keys that
    follow from the array's backend and layout. It is an array of the array API standard: its
    operators call those of the library ``array``. NumPy's functions take a tensor for the array
    that it is, and give plain arrays. ``names`` are those of its dimensions: see ``rename``. Raises
    TypeError if ``array`` is not an array, DeviceError if its elements cannot be read, and
    ArgumentError for names that do not fit.
    """

    def __init_subclass__(cls, *, is_below: bool = False, **options: Any) -> None:
        """Set the key Python on tensors of a user's class (``functionalities/python_fallback.py``).

        ``is_below`` is for classes whose tensors kernels get as they are.
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

        None stands in that of a nested tensor, where its components differ.
        """
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def to(self, device: str) -> Tensor:
        """Return the tensor on ``device``: itself, if it is there.

        Else a copy with that device's keys.

        The copy is recorded: gradients go back to where the tensor was. Modes and profiles see it
        as a call of ``array::astype`` with ``device``, if that has a kernel for the tensor. Without
        a number, such as ``"cuda"``, it is the current device of that type. Raises DeviceError if
        there is none, and DeviceMemoryError if it has no room.
        """
        kind, number = arrays.split_device(device)
        here, place = arrays.split_device(self.device)
        if kind == here and number in (None, place):
            return self
        if isinstance(self.array, FakeArray):  # by an operator, which can be recorded
            there: Tensor = array_namespace().astype(self, self.dtype, device=device)
            return there
        moved: Any
        if _is_watched() and self._can_be_converted():
            with no_grad():  # the move is what is recorded
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
        """Return whether it has elements and plain keys, and ``array::astype`` a kernel for it."""
        array = self.array
        backend = self.key_set.highest_backend_key
        if backend is None or arrays.find_backend(type(array)) is None:
            return False
        if type(array) is arrays.MetaArray or self.key_bits != bits_of_tensor(key_bits_of(array)):
            return False
        key = to_runtime_key(DispatchKey.Dense, backend)
        return bool(array_operators().astype.default.has_kernel_for_dispatch_key(key))

    def detach(self) -> Tensor:
        """Return a tensor over the same elements that records nothing; it shares their version."""
        if is_traced(self):  # by an operator, which is recorded
            traced: Tensor = array_operators().detach.default(self)
            return traced
        return self.detach_here()

    def detach_here(self) -> Tensor:
        """Detach the tensor, unobserved: the operator ``detach`` calls this."""
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
        """Return a tensor of this class, whatever its ``__init__`` takes.

        ``attributes`` are its own.
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
        """Return what its class has added to it: in ``__dict__``, and in slots of its own."""
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
        """Return a tensor of the class ``cls`` over the elements of another, for its ``__new__``.

        Raises AutogradError if they cannot require gradients, and are to. As
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
        """Return a tensor of ``cls`` without elements; the class alone knows what it wraps.

        It has the keys of tensors on ``device``, so that its ``__torch_dispatch__`` is asked for
        every operator; kernels cannot have its elements. ``others`` are the strides, the layout and
        what else PyTorch's takes, of which nothing is kept. Raises ArgumentError for a class that
        handles no operators. As ``torch.Tensor._make_wrapper_subclass``.
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
        """Call an operator with the key Python, and all above it, switched off.

        For ``super().__torch_dispatch__(func, types, args, kwargs)`` in a class that handles
        operators: kernels get its tensors as plain ones, and no gradients are recorded. A class
        that defines none of its own handles none.
        """
        return call_below_python()(func, args, kwargs or {})

    def __copy__(self) -> Tensor:
        """Return a leaf over the same elements, which shares their version."""
        copied = self.detach()
        copied.requires_grad_flag = bool(self.requires_grad_flag)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a leaf with elements of its own, and a ``grad`` of its own.

        Raises AutogradError.
        """
        if not self.is_leaf:
            raise AutogradError(
                f"a tensor that was made by {self.grad_fn} cannot be copied with what has made it",
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
        """Reduce the tensor for ``pickle``: a leaf, without ``grad``, as PyTorch's."""
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
        """Call ``to`` by the array API standard's name. Raises ArgumentError for a stream."""
        if stream is not None:
            raise ArgumentError("to_device takes no stream; it uses the current one of the device")
        return self.to(device)

    def __repr__(self) -> str:
        grad = ", requires_grad=True" if self.requires_grad else ""
        device = "" if self.device == "cpu" else f", device={self.device!r}"
        names = f", names={self.names}" if self.key_bits & NAMED_BIT else ""
        return f"Tensor({self._describe_array()}{device}{names}{grad})"

    def _repr_html_(self) -> str:
        """Describe the tensor for notebooks: its facts, and then its elements."""
        import html  # here, since few programs need it, and it brings a large table

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
    """Return whether calls with its instances are handed to its ``__torch_dispatch__``.

    That of ``Tensor`` handles nothing: it is for those to fall back on that are derived from it.
    """
    own = getattr(cls, "__torch_dispatch__", None)
    return own is not None and getattr(own, "__func__", own) is not _HANDLES_NOTHING


Variable.plain_class = Tensor
_HANDLES_NOTHING = Tensor.__dict__["__torch_dispatch__"].__func__


def _init_unless_made(self: Tensor, *args: Any, **kwargs: Any) -> None:
    """Call ``Tensor.__init__``, unless ``__new__`` has made all of the tensor."""
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
    """Return a tensor over an array that no kernel has made.

    In inference mode, an inference tensor.
    """
    tensor = Tensor(array, requires_grad=requires_grad)
    if is_inference_mode_enabled():
        make_inference(tensor)
    return tensor


def of_plain_class(tensor: Tensor) -> Tensor:
    """Return a tensor of a user's class as a ``Tensor``: the same elements, version and keys."""
    if type(tensor) is Tensor:
        return tensor
    plain = Tensor(tensor.array, keys=DispatchKeySet(tensor.key_bits & ~_PYTHON))
    meta_of(plain).counter = counter_of(tensor)
    return plain


def _rebuilt(
    cls: type[Tensor], array: Any, key_bits: int | None, names: Any, requires_grad: bool
) -> Tensor:
    """Return a tensor that was pickled; in inference mode, one of that."""
    tensor = cls._over(array, key_bits)
    if is_inference_mode_enabled():
        make_inference(tensor)
    tensor.requires_grad_flag = requires_grad
    if names is not None:
        tensor._names = names
    return tensor


arrays.register_tensor_type(Tensor)
