"""What the array API standard's arrays can do by themselves: operators, indexing, conversions.

Each operator calls a function of ``opdispatch.array_api``, which calls an operator of the library
``array``: it is imported when the first one is used.

Note [Operators of its own]
    In a worker interpreter the default dispatcher has what the daemon says, and nothing else: a
    library that a kernel's arithmetic brought there would be in the way of the same one when the
    daemon has it loaded. And operators that are loaded elsewhere have kernels there that ask the
    daemon: no way to add two tensors. So there, tensors have a dispatcher of their own.

https://data-apis.org/array-api/2024.12/API_specification/array_object.html
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.errors import ArgumentError

_is_private = False

_SCALARS = (bool, int, float, complex)

Operator = Callable[[Any, Any], Any]


def keep_private() -> None:
    """Has operators of tensors go through a dispatcher of their own, before one is used.

    See Note [Operators of its own].
    """
    global _is_private
    _is_private = True


def is_private() -> bool:
    """Whether ``keep_private`` was called."""
    return _is_private


@functools.cache
def _namespace() -> Any:
    return importlib.import_module("opdispatch.array_api")


def _is_operand(value: object) -> bool:
    return isinstance(value, _SCALARS) or find_key_bits(value) is not None


def _binary(name: str) -> tuple[Operator, Operator, Operator]:
    """An operator, its reflection, and the one that writes to the first operand."""

    def forward(self: Any, other: Any) -> Any:
        return getattr(_namespace(), name)(self, other) if _is_operand(other) else NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        return getattr(_namespace(), name)(other, self) if _is_operand(other) else NotImplemented

    def in_place(self: Any, other: Any) -> Any:
        result = forward(self, other)
        if result is NotImplemented:
            return result
        if result.dtype != self.dtype or result.shape != self.shape:
            raise ArgumentError(
                f"the result has shape {list(result.shape)} and dtype {result.dtype}, and cannot "
                f"be written to a tensor of shape {list(self.shape)} and dtype {self.dtype}"
            )
        self[...] = result
        return self

    return forward, reflected, in_place


def _unary(name: str) -> Callable[[Any], Any]:
    return lambda self: getattr(_namespace(), name)(self)


class TensorOperators:
    """A base of ``Tensor``, which has an ``array``."""

    __slots__ = ()

    array: Any

    __add__, __radd__, __iadd__ = _binary("add")
    __sub__, __rsub__, __isub__ = _binary("subtract")
    __mul__, __rmul__, __imul__ = _binary("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _binary("divide")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _binary("floor_divide")
    __mod__, __rmod__, __imod__ = _binary("remainder")
    __pow__, __rpow__, __ipow__ = _binary("pow")
    __matmul__, __rmatmul__, __imatmul__ = _binary("matmul")
    __and__, __rand__, __iand__ = _binary("bitwise_and")
    __or__, __ror__, __ior__ = _binary("bitwise_or")
    __xor__, __rxor__, __ixor__ = _binary("bitwise_xor")
    __lshift__, __rlshift__, __ilshift__ = _binary("bitwise_left_shift")
    __rshift__, __rrshift__, __irshift__ = _binary("bitwise_right_shift")
    __lt__, _, _ = _binary("less")
    __le__, _, _ = _binary("less_equal")
    __gt__, _, _ = _binary("greater")
    __ge__, _, _ = _binary("greater_equal")
    __eq__, _, _ = _binary("equal")
    __ne__, _, _ = _binary("not_equal")
    __hash__ = None  # type: ignore[assignment]
    __neg__ = _unary("negative")
    __pos__ = _unary("positive")
    __abs__ = _unary("abs")
    __invert__ = _unary("bitwise_invert")

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """``opdispatch.array_api``. Raises ArgumentError for a revision that it is not of."""
        namespace = _namespace()
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ArgumentError(
                f"there is no namespace for revision {api_version!r} of the array API standard; "
                f"there is one for {namespace.__array_api_version__}"
            )
        return namespace

    def __bool__(self) -> bool:
        return bool(self.array)

    def __int__(self) -> int:
        return int(self.array)

    def __float__(self) -> float:
        return float(self.array)

    def __complex__(self) -> complex:
        return complex(self.array)

    def __index__(self) -> int:
        return self.array.__index__()  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.array)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.array.shape)

    @property
    def T(self) -> Any:  # noqa: N802
        """A matrix with rows and columns exchanged. Raises ArgumentError unless it is a matrix."""
        if (ndim := len(self.array.shape)) != 2:
            raise ArgumentError(
                f"T is of a tensor of 2 dimensions, and this one has {ndim}",
                hint="use mT, or array_api.permute_dims",
            )
        return _namespace().matrix_transpose(self)

    @property
    def mT(self) -> Any:  # noqa: N802
        """The same of each matrix in its last two dimensions."""
        return _namespace().matrix_transpose(self)
