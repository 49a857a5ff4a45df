"""How operators go to NumPy without the Python that stands before what it does in C.

``np.sum`` looks whether its argument has a method of that name, collects what it was given, and
calls ``np.add.reduce``: of four elements, that is half its time. array-api-compat asks for the
device first, or inspects a signature. Kernels have these expressions in their text, for arrays of
NumPy's own class; subclasses, such as masked arrays, and what is unusual go the long way.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class NumpyCall(NamedTuple):
    """An expression of an operator's arguments and of ``np``."""

    expression: str
    condition: str = ""
    """Of its arguments: whether the expression does what the function does."""


_ON_HOST = "device is None"
# What preconditions refuse, is not for these.
_IS_REAL = "type(correction) is not complex"
_HAS_POINTS = "n is None and -x.ndim <= axis < x.ndim and x.shape[axis] != 0"

NUMPY_CALLS: Final = {
    "sum": NumpyCall("np.add.reduce(x, {axis}, dtype, None, keepdims)"),
    "prod": NumpyCall("np.multiply.reduce(x, {axis}, dtype, None, keepdims)"),
    "max": NumpyCall("np.maximum.reduce(x, {axis}, None, None, keepdims)"),
    "min": NumpyCall("np.minimum.reduce(x, {axis}, None, None, keepdims)"),
    "all": NumpyCall("np.logical_and.reduce(x, {axis}, np.bool, None, keepdims)"),
    "any": NumpyCall("np.logical_or.reduce(x, {axis}, np.bool, None, keepdims)"),
    "mean": NumpyCall("x.mean({axis}, None, None, keepdims)"),
    "std": NumpyCall("x.std({axis}, None, None, correction, keepdims)", _IS_REAL),
    "var": NumpyCall("x.var({axis}, None, None, correction, keepdims)", _IS_REAL),
    "argmax": NumpyCall("x.argmax(axis, keepdims=keepdims)"),
    "argmin": NumpyCall("x.argmin(axis, keepdims=keepdims)"),
    "cumulative_sum": NumpyCall("x.cumsum(axis, dtype)", "not include_initial and x.ndim == 1"),
    "cumulative_prod": NumpyCall("x.cumprod(axis, dtype)", "not include_initial and x.ndim == 1"),
    "empty": NumpyCall("np.empty(shape, dtype)", _ON_HOST),
    "full": NumpyCall(
        "np.full(shape, fill_value, dtype)", f"{_ON_HOST} and type(fill_value) is not complex"
    ),
    "ones": NumpyCall("np.ones(shape, dtype)", _ON_HOST),
    "zeros": NumpyCall("np.zeros(shape, dtype)", _ON_HOST),
    "astype": NumpyCall("x.astype(dtype, copy=copy)", _ON_HOST),
    "concat": NumpyCall("np.concatenate(arrays, axis)", "arrays"),
    "take": NumpyCall("x.take(indices, axis)"),
    "reshape": NumpyCall("x.reshape(shape)", "copy is None and min(shape, default=0) >= -1"),
    "permute_dims": NumpyCall("x.transpose(axes)"),
    "matrix_transpose": NumpyCall("x.mT", "x.ndim > 1"),
    "sort": NumpyCall("np.sort(x, axis, 'stable')", "stable and not descending"),
    "argsort": NumpyCall("x.argsort(axis, 'stable')", "stable and not descending"),
    "matmul": NumpyCall("np.matmul(x1, x2)"),
    "fft_fft": NumpyCall("np.fft.fft(x, None, axis, norm)", _HAS_POINTS),
    "fft_ifft": NumpyCall("np.fft.ifft(x, None, axis, norm)", _HAS_POINTS),
    "fft_rfft": NumpyCall(
        "np.fft.rfft(x, None, axis, norm)", f"x.dtype.kind != 'c' and {_HAS_POINTS}"
    ),
}
