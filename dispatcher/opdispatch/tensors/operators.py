"""Python operators, indexing and conversions of tensors, as the array API standard defines them.

Each Python operator calls a function of ``opdispatch.array_api``, which calls an operator of the
library ``array``. That library is imported on first use.

Note [Operators of its own]
    In a worker interpreter, the default dispatcher contains only the libraries that the daemon
    loads there. If arithmetic in a kernel imported ``array`` into it, loading that library through
    the daemon would fail later. Conversely, if the daemon has loaded ``array`` into another
    interpreter, its kernels here forward to the daemon, and adding two tensors would take a
    round trip. So in a worker, tensor arithmetic uses a private dispatcher. For backends that
    libraries provide, it redispatches to the kernels registered in the default dispatcher.

https://data-apis.org/array-api/2025.12/API_specification/array_object.html
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from opdispatch.arrays import (
    FakeArray,
    MetaArray,
    device_errors,
    find_backend,
    find_key_bits,
    find_layout,
)
from opdispatch.arrays.lazy_array import LazyArray, materialized
from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.inplace_writes import check_inplace, rebase_history
from opdispatch.autograd.node import Edge
from opdispatch.autograd.variable import Variable, edge_of, meta_of
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, NOT_RECORDING, no_grad
from opdispatch.local_state.lazy_imports import array_namespace, tensor_getitem
from opdispatch.local_state.tracing_state import is_traced, note_reading
from opdispatch.tensors.indexing import SCALARS, setitem

_is_private = False

_LINEAR = frozenset({"add", "subtract"})
_OF_LEVELS = DispatchKeySet.of(DispatchKey.FuncTorchBatched, DispatchKey.FuncTorchGradWrapper).bits

Operator = Callable[[Any, Any], Any]
Method = TypeVar("Method", bound=Callable[..., Any])


def keep_private() -> None:
    """Use a private dispatcher for tensor operators; call before the first operator is used.

    See Note [Operators of its own].
    """
    global _is_private
    _is_private = True


def is_private() -> bool:
    """Return whether ``keep_private`` was called."""
    return _is_private


def _finder_of(function: str) -> Callable[[], Callable[..., Any]]:
    return functools.cache(lambda: getattr(array_namespace(), function))


def is_operand(value: object) -> bool:
    """Return whether ``value`` can be the other operand: a number, an array or a tensor."""
    return isinstance(value, bool | int | float | complex) or find_key_bits(value) is not None


def _binary(name: str, function: str) -> tuple[Operator, Operator, Operator]:
    """Return a binary operator with its reflected and in-place variants."""
    find = _finder_of(function)

    def forward(self: Any, other: Any, /) -> Any:
        kind = type(other)
        if kind is not type(self) and kind not in SCALARS and not is_operand(other):
            return NotImplemented
        return find()(self, other)

    def reflected(self: Any, other: Any, /) -> Any:
        if not is_operand(other):
            return NotImplemented
        return find()(other, self)

    def in_place(self: Any, other: Any, /) -> Any:
        is_step, edge, given = False, None, self
        if AUTOGRAD_STATE.get().grad_mode:
            is_step = _is_recorded(self, other) and _has_one_history(self)
            edge = edge_of(self) if is_step else None
            given = _as_it_is(self, edge, other, function)
        result = forward(given, other)
        if result is NotImplemented:
            return result
        made, whole = getattr(result, "array", result), self.array
        if type(made) is not np.ndarray or type(whole) is not np.ndarray:
            made, whole = result, self
        dtypes = whole.dtype, whole.dtype.newbyteorder("=")
        if made.shape != whole.shape or made.dtype not in dtypes:
            raise ArgumentError(
                f"the result has shape {list(made.shape)} and dtype {made.dtype}, and cannot be "
                f"written to a tensor of shape {list(whole.shape)} and dtype {whole.dtype}"
            )
        node = getattr(result, "grad_fn", None) if is_step else None
        if node is None or len(node.edges) < 2 - (edge is not None) or node.edges[0] != edge:
            self[...] = result
            return self
        check_inplace(self)  # recorded as a single node, that of the out-of-place operator
        outer = AUTOGRAD_STATE.set(NOT_RECORDING[False])
        try:
            self[...] = result
        finally:
            AUTOGRAD_STATE.reset(outer)
        rebase_history(self, node)
        return self

    return (
        _named(forward, f"__{name}__", f"Return ``{function}(self, other)``."),
        _named(reflected, f"__r{name}__", f"Return ``{function}(other, self)``."),
        _named(in_place, f"__i{name}__", f"Write ``{function}(self, other)`` to ``self``."),
    )


def _as_it_is(written: Any, edge: Edge | None, other: Any, function: str) -> Any:
    """Return the first operand for an in-place operator while gradients are recorded.

    It is a copy if the backward pass needs the value before the write.
    """
    needs_it = _may_have_gradient(other) or (function == "pow" and _may_have_gradient(written))
    if not needs_it or function in _LINEAR:
        return written
    if edge is None:
        return +written
    with no_grad():
        copied = +written
    meta_of(copied).edge = edge
    copied.requires_grad_flag = True
    return copied


def _is_recorded(written: Any, other: Any) -> bool:
    """Return whether either operand requires gradients."""
    return True in (getattr(written, "requires_grad", None), getattr(other, "requires_grad", None))


def _has_one_history(written: Any) -> bool:
    """Return whether autograd alone tracks the tensor: no transform, trace or subclass does."""
    if type(written) is not Variable.plain_class or is_traced(written):
        return False
    array = written.array
    if type(array) is np.ndarray:
        return True
    is_other = isinstance(array, LevelArray | FakeArray | LazyArray)
    return not is_other and find_backend(type(array)) is not None


def _may_have_gradient(value: Any) -> bool:
    """Return whether ``value`` requires gradients, or may when a transform or a trace runs."""
    flag = getattr(value, "requires_grad", False)
    return flag or bool(getattr(value, "key_bits", 0) & _OF_LEVELS) or is_traced(value)


def _on_host(array: Any) -> Any:
    """Return an array that Python's conversions accept, copied to the host from another device.

    Raises DeviceError, and ArgumentError for layouts other than dense with more than one element.
    """
    if type(array) is np.ndarray:
        return array
    array = materialized(array)
    if (layout := find_layout(type(array))) is not None:
        if None in array.shape or math.prod(array.shape) != 1:
            raise ArgumentError(
                f"a {layout.name} tensor of shape {list(array.shape)} is neither a number nor a "
                "list of numbers"
            )
        array = layout.to_dense(array)
    backend = None if isinstance(array, MetaArray) else find_backend(type(array))
    if backend is None:
        return array
    with device_errors(backend.device_of(array)):
        return backend.to_host(array)


def _one_on_host(array: Any) -> Any:
    """Return ``_on_host(array)``, reshaped to 0-d if it has one element.

    PyTorch converts a one-element tensor of any shape; NumPy 2.4 no longer does.
    """
    array = _on_host(array)
    return array.reshape(()) if isinstance(array, np.ndarray) and array.size == 1 else array


def _comparison(name: str, function: str) -> Operator:
    return _binary(name, function)[0]


def _unary(name: str, function: str) -> Callable[[Any], Any]:
    find = _finder_of(function)

    def operator(self: Any, /) -> Any:
        return find()(self)

    return _named(operator, f"__{name}__", f"Return ``{function}(self)``.")


def _named(operator: Method, name: str, text: str) -> Method:
    operator.__name__ = name
    operator.__qualname__ = f"TensorOperators.{name}"
    operator.__doc__ = text
    return operator


class TensorOperators:
    """A base class of ``Tensor`` and its stand-ins; subclasses have a shape and an ``array``."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def array(self) -> Any:
            """The elements, as an array of any backend."""

        @property
        def shape(self) -> tuple[int, ...]:
            """The extent of each dimension, in elements."""

    __add__, __radd__, __iadd__ = _binary("add", "add")
    __sub__, __rsub__, __isub__ = _binary("sub", "subtract")
    __mul__, __rmul__, __imul__ = _binary("mul", "multiply")
    __truediv__, __rtruediv__, __itruediv__ = _binary("truediv", "divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floordiv", "floor_divide")
    __mod__, __rmod__, __imod__ = _binary("mod", "remainder")
    __pow__, __rpow__, __ipow__ = _binary("pow", "pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul", "matmul")
    __and__, __rand__, __iand__ = _binary("and", "bitwise_and")
    __or__, __ror__, __ior__ = _binary("or", "bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("xor", "bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("lshift", "bitwise_left_shift")
    __rshift__, __rrshift__, __irshift__ = _binary("rshift", "bitwise_right_shift")
    __lt__ = _comparison("lt", "less")
    __le__ = _comparison("le", "less_equal")
    __gt__ = _comparison("gt", "greater")
    __ge__ = _comparison("ge", "greater_equal")
    __eq__ = _comparison("eq", "equal")
    __ne__ = _comparison("ne", "not_equal")
    __hash__ = None  # type: ignore[assignment]
    __neg__ = _unary("neg", "negative")
    __pos__ = _unary("pos", "positive")
    __abs__ = _unary("abs", "abs")
    __invert__ = _unary("invert", "bitwise_invert")

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """Return ``opdispatch.array_api``.

        Raises ArgumentError for an ``api_version`` that it does not implement.
        """
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ArgumentError(
                f"there is no namespace for revision {api_version!r} of the array API standard; "
                f"there is one for {array_namespace().__array_api_version__}"
            )
        return array_namespace()

    def __bool__(self) -> bool:
        note_reading(self, "bool() of a tensor")
        return bool(_on_host(self.array))

    def __int__(self) -> int:
        note_reading(self, "int() of a tensor")
        return int(_one_on_host(self.array))

    def __float__(self) -> float:
        note_reading(self, "float() of a tensor")
        return float(_one_on_host(self.array))

    def __complex__(self) -> complex:
        note_reading(self, "complex() of a tensor")
        return complex(_one_on_host(self.array))

    def __index__(self) -> int:
        note_reading(self, "a tensor as an index")
        array = _on_host(self.array)
        if isinstance(array, np.ndarray) and (array.shape or array.dtype.kind not in "iu"):
            raise TypeError("only a tensor of one integer, without dimensions, is an index")
        return array.__index__()  # type: ignore[no-any-return]

    def __getitem__(self, index: Any, /) -> Any:
        """Return the elements that ``index`` selects. Raises IndexError."""
        # The first call replaces this method with the one of a higher layer.
        TensorOperators.__getitem__ = tensor_getitem()  # type: ignore[method-assign]
        return self[index]

    __setitem__ = setitem

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        note_reading(self, "len() of a tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[place] for place in range(len(self)))

    def __format__(self, spec: str) -> str:
        """Format the number of a 0-d tensor by ``spec``; without one, format the tensor."""
        if spec and not self.shape:
            return format(self.item(), spec)
        return super().__format__(spec)

    def item(self) -> Any:
        """Return the element of a one-element tensor as a Python number.

        Raises ValueError for any other number of elements.
        """
        note_reading(self, "item() of a tensor")
        return _on_host(self.array).item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers; a 0-d tensor as one number.

        Raises ArgumentError for a sparse or nested tensor.
        """
        note_reading(self, "tolist() of a tensor")
        return np.asarray(_on_host(self.array)).tolist()

    @property
    def size(self) -> int | None:
        """The number of elements; None if unknown."""
        return math.prod(self.shape)

    @property
    def T(self) -> Any:  # noqa: N802
        """The transpose of a matrix. Raises ArgumentError unless the tensor has two dimensions."""
        if (ndim := len(self.shape)) != 2:
            raise ArgumentError(
                f"T requires a tensor of 2 dimensions; this one has {ndim}",
                hint="use mT, or array_api.permute_dims",
            )
        return array_namespace().matrix_transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802
        """The transpose of each matrix in the last two dimensions."""
        return array_namespace().matrix_transpose(self)
