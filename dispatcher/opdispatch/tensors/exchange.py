"""Interoperability with other libraries: NumPy's protocols and DLPack.

https://numpy.org/doc/stable/user/basics.interoperability.html
https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import FakeArray, find_backend, give_by_dlpack
from opdispatch.arrays.level_array import LevelArray
from opdispatch.errors import AutogradError, DeviceError
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.local_state.tracing_state import note_reading

_AUTOGRAD = AUTOGRAD_KEYSET.bits
_OPERATORS = {
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    "absolute": "abs",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
}
"""The array API standard's names of ufuncs, where NumPy's names differ."""


class TensorExchange:
    """A base class of ``Tensor`` that implements NumPy's protocols and DLPack."""

    __slots__ = ()

    array: Any
    requires_grad_flag: Any

    if TYPE_CHECKING:

        @property
        def device(self) -> str:
            """The device that holds the elements."""

        def _require_dense(self, what: str) -> None:
            """Raise ArgumentError unless the tensor is dense; ``what`` names the operation."""

        def detach(self) -> Any:
            """Return a tensor that shares the elements but has no autograd history."""

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        followed = list(filter(_is_followed, inputs))
        if followed or any(map(_is_unknown, inputs)):
            operator = None if kwargs or method != "__call__" else _find_operator(ufunc)
            if operator is not None:
                return operator(*map(_as_number, inputs))
            if followed and not any(isinstance(each.array, LevelArray) for each in followed):
                raise _lost_history(ufunc, method)
        for value in (*inputs, *kwargs.get("out", ())):
            note_reading(value, "a tensor in a function of NumPy's")
        given = kwargs.get("out", ())
        if given:
            kwargs["out"] = tuple(_array_of(value) for value in given)
        result = getattr(ufunc, method)(*(_array_of(value) for value in inputs), **kwargs)
        # With `out=`, return the tensor that was passed, as `x += 1` requires.
        if len(given) == 1:
            return given[0]
        if given:
            return tuple(r if g is None else g for r, g in zip(result, given, strict=True))
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        note_reading(self, "a tensor as NumPy's array")
        self._require_dense("have its elements in one array")
        if self.device != "cpu" and not isinstance(self.array, FakeArray):
            raise DeviceError(
                f"a tensor on {self.device!r} cannot be converted to a NumPy array",
                hint="move it first: tensor.cpu()",
            )
        if _is_recorded(self):
            raise AutogradError(
                "a tensor that requires gradients cannot be converted to a NumPy array: autograd "
                "would not record its use",
                hint="use tensor.detach(), or a block of no_grad()",
            )
        return np.array(self.array, dtype=dtype, copy=copy)

    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """Return the elements as a NumPy array that shares the tensor's memory where possible.

        ``force=True`` is short for ``detach().cpu().numpy()``. Otherwise, raises AutogradError for
        a tensor that requires gradients, unless gradient recording is disabled, and DeviceError for
        a tensor that is not in host memory.
        """
        return self.detach().cpu().__array__() if force else self.__array__()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        note_reading(self, "a tensor by DLPack")
        refuse_recorded(self)
        array = self.array
        if _goes_backwards(array):
            if copy is False:
                raise BufferError(
                    f"a tensor with negative strides, of shape {list(array.shape)}, is not "
                    "shared by DLPack; ask for a copy"
                )
            if isinstance(array, np.ndarray):
                copy = True  # None allows a copy where one is needed
            elif (backend := find_backend(type(array))) is not None:
                array, copy = backend.copy(array), None  # CuPy's __dlpack__ does not copy on a GPU
        given = {
            "stream": stream,
            "max_version": max_version,
            "dl_device": dl_device,
            "copy": copy,
        }
        asked = {name: value for name, value in given.items() if value is not None}
        try:
            if type(array) is np.ndarray:
                return give_by_dlpack(array, **asked)
            return self._of_dlpack("__dlpack__", array)(**asked)
        except ValueError as error:  # raised by NumPy before 2.4 for another device
            raise BufferError(str(error)) from error

    def __dlpack_device__(self) -> Any:
        return self._of_dlpack("__dlpack_device__", self.array)()

    def _of_dlpack(self, name: str, array: Any) -> Any:
        method = getattr(array, name, None)
        if method is None:
            kind = type(array).__name__
            raise BufferError(f"{kind} on {self.device} cannot be exported by DLPack")
        return method


def refuse_recorded(tensor: TensorExchange) -> None:
    """Raise BufferError for a tensor that requires gradients, as PyTorch does: DLPack would lose
    the history.

    Tensors inside a transform raise an error of their own.
    """
    if _is_recorded(tensor) and not isinstance(tensor.array, LevelArray):
        raise BufferError(
            "a tensor that requires gradients cannot be exported by DLPack: autograd would not "
            "record its use; use tensor.detach(), or a block of no_grad()"
        )


def _goes_backwards(array: Any) -> bool:
    """Return whether an array has negative strides, which would make PyTorch abort the process."""
    strides = getattr(array, "strides", None)
    if not isinstance(strides, tuple):
        return False
    pairs = zip(array.shape, strides, strict=True)
    return any(extent > 1 and stride < 0 for extent, stride in pairs)


def _is_recorded(tensor: TensorExchange) -> bool:
    """Return whether operators record gradients for the tensor.

    In a kernel below Autograd they never do: the history belongs to the result of the operator.
    """
    if not tensor.requires_grad_flag or not AUTOGRAD_STATE.get().grad_mode:
        return False
    return _AUTOGRAD & ~LOCAL_STATE.get().excluded != 0


def _is_followed(value: Any) -> bool:
    """Return whether gradients or a transform track the operators called with a tensor."""
    if not isinstance(value, TensorExchange):
        return False
    return _is_recorded(value) or isinstance(value.array, LevelArray)


def _find_operator(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """Return the function of ``opdispatch.array_api`` for a ufunc; None if there is none."""
    return getattr(array_namespace(), _OPERATORS.get(ufunc.__name__, ufunc.__name__), None)


def _as_number(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, as PyTorch does: ``np.float64(2) * x`` is
    ``2.0 * x``.
    """
    return value.item() if isinstance(value, np.generic) else value


def _lost_history(ufunc: np.ufunc, method: str) -> AutogradError:
    called = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    return AutogradError(
        f"np.{called} was called with a tensor that requires gradients, but autograd cannot record "
        "NumPy's functions",
        hint="use the function of opdispatch.array_api, or give it x.detach()",
    )


def _is_unknown(value: Any) -> bool:
    """Return whether NumPy would treat a tensor's array, such as a GPU's, as a plain object."""
    if not isinstance(value, TensorExchange):
        return False
    cls = type(value.array)
    return not (hasattr(cls, "__array_ufunc__") or hasattr(cls, "__array__"))


def _array_of(value: Any) -> Any:
    """Return the array that NumPy computes with.

    Raises DeviceError for a tensor that is not in host memory, and ArgumentError for other layouts.
    """
    if _is_unknown(value):
        return value.__array__()  # raises the appropriate error
    return value.array if isinstance(value, TensorExchange) else value
