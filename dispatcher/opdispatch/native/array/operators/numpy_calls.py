"""Expressions that call NumPy's C functions directly, without the Python in front of them.

``np.sum`` looks for a method of that name on its argument, packs its options, and calls
``np.add.reduce``: for four elements, this is half its time. array-api-compat checks the device
first, or inspects a signature. Kernels inline these expressions for instances of ``ndarray``
itself; subclasses, such as masked arrays, and unusual arguments take the general path.

They also skip the lookup of ``__array_function__`` (NEP 18), which takes 0.2 us: for one array of
NumPy's own class, the expressions call the implementation below the protocol.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from opdispatch.native.array.operators.numpy_loops import FEW, reduce, where

_FUNCTION = re.compile(r"\bnp\.([a-z_.]+)(?=\()")


class NumpyCall(NamedTuple):
    """An expression in an operator's parameters, ``np`` and the names of ``CHECKS``."""

    expression: str
    condition: str = ""
    """An expression that is true if ``expression`` is equivalent to the function."""

    def for_its_own(self) -> tuple[NumpyCall, dict[str, Callable[..., Any]]]:
        """Return the call below ``__array_function__``, and the functions it names."""
        functions = {}

        def replace(found: re.Match[str]) -> str:
            name = "np_" + found[1].replace(".", "_")
            functions[name] = _below_the_protocol(attrgetter(found[1])(np))
            return name

        return NumpyCall(*(_FUNCTION.sub(replace, text) for text in self)), functions


def _below_the_protocol(function: Any) -> Any:
    """Return the implementation that NumPy calls unless ``__array_function__`` is overridden."""
    looks_for_others = isinstance(function, type(np.concatenate))
    return getattr(function, "__wrapped__", function) if looks_for_others else function


CHECKS: Final = {
    "FEW": FEW,
    "reduce": reduce,
    "where": where,
    "isfinite": math.isfinite,
    "isnan": math.isnan,
    "vdot": _below_the_protocol(np.vdot),
    "are_axes": frozenset(range(-64, 64)).issuperset,
    "nditer": np.nditer,
    "OF_BROADCASTS": ["multi_index", "refs_ok"],
    "AT_NEW_AXIS": {
        **{axis: (*[slice(None)] * axis, None) for axis in range(64)},
        **{-1 - axis: (..., None, *[slice(None)] * axis) for axis in range(64)},
    },
    "its_own": frozenset({np.ndarray}),
    "size_of": math.prod,
    "is_contiguous": attrgetter("flags.c_contiguous"),
    "shape_of": attrgetter("shape"),
    "dtype_of": attrgetter("dtype"),
    "concatenate": _below_the_protocol(np.concatenate),
}

_ON_HOST = "device is None"
# Conditions: arguments that preconditions reject, or that need an adapter, take the general path.
_IS_REAL = "type(correction) is not complex"
_IS_SMALL = "-0x3FFFFFFF < {} < 0x3FFFFFFF"
_IS_ALONG_ONE = "not include_initial and (x.ndim == 1 or x.ndim and axis is not None)"
_HAS_POINTS = "n is None and -x.ndim <= axis < x.ndim and x.shape[axis] != 0"
_ALL_HAVE_POINTS = "s is None and axes is None and x.size and x.ndim"
# NumPy's quotient is NaN where x1 is infinite, and may differ from the standard's where x2 is. In
# both cases ``vdot(r, x2)`` is infinite or NaN; computing it takes a third of the time of two
# ``isinf``. Finite sums that overflow take the general path as well. ``vdot`` does not warn.
_QUOTIENT = "(r := np.floor_divide(x1, x2))"
_HAS_FREQUENCIES = f"{_ON_HOST} and dtype is None and d and 0 < n < 0x3FFFFFFF"
_ARE_FEW_AND_SMALL = " and ".join(
    [
        "type(repeats) is ndarray and repeats.ndim == 1 and 0 < repeats.size < 100",
        "repeats.dtype.kind == 'i' and min(numbers := repeats.tolist()) >= 0",
        "max(numbers) < 0x3FFFFFFF and 0 < x.nbytes < 0x3FFFFFFF",
    ]
)
_ARE_OF_ONE_EXTENT = " and ".join(
    [
        "len(axes) == 2 and len(axes[0]) == 1 == len(axes[1])",
        "-x1.ndim <= (a := axes[0][0]) < x1.ndim and -x2.ndim <= (b := axes[1][0]) < x2.ndim",
        "x1.shape[a] == x2.shape[b]",
    ]
)
# Reading the ends of a short list takes half the time of ``min``.
_ARE_AT_LEAST = "(shape[0] >= {0} <= shape[-1] if len(shape) < 3 else min(shape) >= {0})"
_ARE_ITS_OWN = "(are_alike or its_own.issuperset(map(type, arrays)))"  # see ``kernels.py``
_HAVE_ONE_DTYPE = "(are_alike or arrays[0].dtype.isnative and len(set(map(dtype_of, arrays))) == 1)"
# If this holds, ``np.array(arrays)`` equals ``np.stack(arrays)``.
_ARE_ALIKE = " and ".join(
    [
        f"axis == 0 and arrays[0].ndim < 32 and {_HAVE_ONE_DTYPE}",
        "(arrays[0].shape == arrays[1].shape if len(arrays) == 2"
        " else len(set(map(shape_of, arrays))) == 1)",
        # For other layouts, the memory order of the result differs from ``np.stack``'s.
        "(arrays[0].ndim < 2 or all(map(is_contiguous, arrays)))",
    ]
)
_OF_LAPACK = "x.dtype.char in 'fdFD'"
_HAS_HALF_A_SPECTRUM = "n is None and -x.ndim <= axis < x.ndim and x.shape[axis] > 1"
# LAPACK's singular values never converge for some matrices with an infinity.
_IS_FINITE = "x.dtype.char in 'fd' and isfinite(vdot(x, x))"
_INTEGERS = " and ".join(
    [
        f"type(start) is int and {_IS_SMALL.format('start')}",
        f"(stop is None or type(stop) is int and {_IS_SMALL.format('stop')})",
        f"type(step) is int and step != 0 and {_IS_SMALL.format('step')}",
    ]
)
_FLOATS = " and ".join(
    [
        "type(start) is float and type(stop) is float and type(step) is float and step",
        _IS_SMALL.format("(stop - start) / step"),
    ]
)
_IS_ONE = "len(stop) == 1 == len(indices) and type(indices[0]) is ndarray"
_ENTRY = "start[{0}] if (by := step[{0}]) is None else slice(start[{0}], stop[{0}], by)"


def _reduction(ufunc: str, dtype: str = "None") -> NumpyCall:
    """Return the call of a reduction; ``numpy_loops.reduce`` handles arrays that are not small."""
    return NumpyCall(
        f"{ufunc}.reduce(x, {{axis}}, {dtype}, None, keepdims) if x.size < FEW"
        f" else reduce({ufunc}, x, {{axis}}, {dtype}, keepdims)"
    )


NUMPY_CALLS: Final = {
    "sum": _reduction("np.add", "dtype"),
    "prod": _reduction("np.multiply", "dtype"),
    "max": _reduction("np.maximum"),
    "min": _reduction("np.minimum"),
    "all": NumpyCall("np.logical_and.reduce(x, {axis}, np.bool, None, keepdims)"),
    "any": NumpyCall("np.logical_or.reduce(x, {axis}, np.bool, None, keepdims)"),
    "mean": NumpyCall("x.mean({axis}, None, None, keepdims)"),
    "std": NumpyCall("x.std({axis}, None, None, correction or 0, keepdims)", _IS_REAL),
    "var": NumpyCall("x.var({axis}, None, None, correction or 0, keepdims)", _IS_REAL),
    "argmax": NumpyCall("x.argmax(axis, keepdims=keepdims)"),
    "argmin": NumpyCall("x.argmin(axis, keepdims=keepdims)"),
    "cumulative_sum": NumpyCall("x.cumsum(axis, dtype)", _IS_ALONG_ONE),
    "cumulative_prod": NumpyCall("x.cumprod(axis, dtype)", _IS_ALONG_ONE),
    "arange": NumpyCall(
        "np.arange(start, stop, step, dtype)", f"{_ON_HOST} and ({_INTEGERS} or {_FLOATS})"
    ),
    "empty": NumpyCall("np.empty(shape, dtype)", _ON_HOST),
    "eye": NumpyCall("np.eye(n_rows, n_cols, k, dtype)", _ON_HOST),
    "full": NumpyCall(
        "np.full(shape, fill_value, dtype)", f"{_ON_HOST} and type(fill_value) is not complex"
    ),
    "ones": NumpyCall("np.ones(shape, dtype)", _ON_HOST),
    "zeros": NumpyCall("np.zeros(shape, dtype)", _ON_HOST),
    "linspace": NumpyCall(
        "np.linspace(start, stop, num, dtype=dtype, endpoint=endpoint)",
        f"{_ON_HOST} and complex not in (type(start), type(stop)) and num < 0x3FFFFFFF",
    ),
    "empty_like": NumpyCall("np.empty_like(x, dtype)", _ON_HOST),
    "full_like": NumpyCall(
        "np.full_like(x, fill_value, dtype)", f"{_ON_HOST} and type(fill_value) is not complex"
    ),
    "ones_like": NumpyCall("np.ones_like(x, dtype)", _ON_HOST),
    "zeros_like": NumpyCall("np.zeros_like(x, dtype)", _ON_HOST),
    "astype": NumpyCall("x.astype(dtype, copy=copy)", _ON_HOST),
    "getitem": NumpyCall(
        # A slice returns an array even without the trailing ellipsis of `_make_index`.
        "(x[start[0], ...] if (by := step[0]) is None else x[start[0] : stop[0] : by])"
        " if n == 1 else"
        f" x[{_ENTRY.format(0)}, {_ENTRY.format(1)}, ...]",
        "0 < (n := len(start)) < 3 and n == len(stop) and n == len(step)",
    ),
    "getitem.Tensor": NumpyCall("x[indices[0], ...]", f"step == [None] == start and {_IS_ONE}"),
    # The core of ``np.broadcast_to``, without its copy of the shape and three generators. A view
    # that repeats no element must be writable, and takes the general path.
    "broadcast_to": NumpyCall(
        "nditer(x, OF_BROADCASTS, None, None, 'C', 'no', None, shape).itviews[0]",
        f"shape and {_ARE_AT_LEAST.format(1)} and 0 != x.size != size_of(shape)",
    ),
    "concat": NumpyCall(
        f"concatenate(arrays, axis) if {_ARE_ITS_OWN} else np.concatenate(arrays, axis)", "arrays"
    ),
    "stack": NumpyCall("np.array(arrays)", f"arrays and {_ARE_ITS_OWN} and {_ARE_ALIKE}"),
    "take": NumpyCall("x.take(indices, axis)"),
    "reshape": NumpyCall(
        "x.reshape(shape)", f"copy is None and (not shape or {_ARE_AT_LEAST.format(-1)})"
    ),
    "expand_dims": NumpyCall(
        "x[AT_NEW_AXIS[axis[0]]]", "len(axis) == 1 and -(n := x.ndim) - 1 <= axis[0] <= n < 64"
    ),
    # Iterating over a 1-d array gives scalars, not 0-d arrays.
    "unstack": NumpyCall(
        "[x[place, ...] for place in range(len(x))] if x.ndim == 1 else [*x]", "axis == 0 < x.ndim"
    ),
    "permute_dims": NumpyCall("x.transpose(axes)", "are_axes(axes)"),
    "matrix_transpose": NumpyCall("x.mT", "x.ndim > 1"),
    # Flip before and after, so that equal elements (0.0 and -0.0) keep their order.
    "sort": NumpyCall(
        "np.flip(np.sort(np.flip(x, axis), axis, 'stable'), axis)"
        " if descending else np.sort(x, axis, 'stable')",
        "stable and (not descending or x.ndim)",
    ),
    "argsort": NumpyCall("x.argsort(axis, 'stable')", "stable and not descending"),
    "repeat": NumpyCall(
        "x.repeat(repeats, axis)", "0 <= repeats < 0x3FFFFFFF and 0 < x.nbytes < 0x3FFFFFFF"
    ),
    "tile": NumpyCall(
        "np.tile(x, {repetitions})",
        "len(repetitions) == 1 and x.nbytes < 0x3FFFFFFF and repetitions[0] < 0x3FFFFFFF",
    ),
    "repeat.Tensor": NumpyCall("x.repeat(repeats, axis)", _ARE_FEW_AND_SMALL),
    "roll": NumpyCall("np.roll(x, {shift}, {axis})", "x.ndim"),
    "diff": NumpyCall("np.diff(x, n, axis)", "n == 1 and prepend is None and append is None"),
    "meshgrid": NumpyCall(
        "[*np.meshgrid(*arrays, indexing=indexing)]",
        "arrays and max([each.ndim for each in arrays]) < 2",
    ),
    "floor_divide.Tensor": NumpyCall(
        f"r if {_QUOTIENT}.dtype.kind != 'f'"
        " or r.size == x2.size and isfinite(vdot(r, x2)) else function(x1, x2)",
    ),
    "floor_divide.Scalar": NumpyCall(
        # The quotient of an infinite x1 is NaN, which ``argmax`` finds; all others are right.
        f"r if {_QUOTIENT}.dtype.kind != 'f' or not isnan(r.item(r.argmax()))"
        " else function(x1, x2)",
        "x1.size and isfinite(x2)",
    ),
    "clip": NumpyCall(
        # One pass: a second temporary makes malloc give pages back, and fault on them again.
        "x.clip(min, max)",
        "x.dtype.kind == 'f' and type(min) is float and (max is None or type(max) is float)",
    ),
    "sign": NumpyCall("np.sign(x)", "x.dtype.kind != 'c'"),
    "where.ScalarOther": NumpyCall(
        "np.where(condition, x1, x2) if x1.size < FEW else where(condition, x1, x2)",
        "type(x2) is float",
    ),
    "where.ScalarSelf": NumpyCall("np.where(condition, x1, x2)", "type(x1) is float"),
    "nonzero": NumpyCall("[*x.nonzero()]", "x.ndim"),
    "count_nonzero": NumpyCall("np.asarray(np.count_nonzero(x))", "axis is None and not keepdims"),
    "searchsorted": NumpyCall(
        "x1.searchsorted(x2, side, sorter)", "x1.dtype.kind != 'c' and x2.dtype.kind != 'c'"
    ),
    "unique_all": NumpyCall("(*np.unique_all(x),)"),
    "unique_counts": NumpyCall("(*np.unique_counts(x),)"),
    "unique_inverse": NumpyCall("(*np.unique_inverse(x),)"),
    "unique_values": NumpyCall("np.unique(x, equal_nan=False)"),
    "matmul": NumpyCall("np.matmul(x1, x2)"),
    "vecdot": NumpyCall(
        "np.vecdot(x1, x2) if axis == -1 else np.vecdot(x1, x2, axis=axis)",
        "x1.shape == x2.shape and -x1.ndim <= axis < x1.ndim",
    ),
    "tensordot": NumpyCall(
        "x1.dot(x2) if axes == 1 and x1.ndim == 2 == x2.ndim else np.tensordot(x1, x2, axes)",
        "0 <= axes <= x1.ndim and axes <= x2.ndim"
        " and x1.shape[x1.ndim - axes :] == x2.shape[:axes]",
    ),
    "tensordot.dims": NumpyCall(
        # For matrices, np.tensordot calls ``dot`` as well, after four microseconds of Python.
        "(x1.T if a in (0, -2) else x1).dot(x2.T if b in (1, -1) else x2)"
        " if x1.ndim == 2 == x2.ndim else np.tensordot(x1, x2, axes)",
        _ARE_OF_ONE_EXTENT,
    ),
    "linalg_outer": NumpyCall("np.multiply.outer(x1, x2)", "x1.ndim == 1 == x2.ndim"),
    "linalg_trace": NumpyCall(
        "np.asarray(x.trace(offset, -2, -1, dtype))", _IS_SMALL.format("offset")
    ),
    "linalg_vector_norm": NumpyCall(
        # Pass an int: NumPy copies the array to move a tuple of axes last.
        "np.linalg.vector_norm(x, axis=axis and axis[0], keepdims=keepdims, ord=ord)",
        "type(ord) is not complex and (axis is None or len(axis) == 1)",
    ),
    "linalg_cholesky": NumpyCall("np.linalg.cholesky(x)", f"not upper and {_OF_LAPACK}"),
    "linalg_det": NumpyCall("np.linalg.det(x)", _OF_LAPACK),
    "linalg_inv": NumpyCall("np.linalg.inv(x)", _OF_LAPACK),
    "linalg_solve": NumpyCall("np.linalg.solve(x1, x2)", _OF_LAPACK.replace("x.", "x1.")),
    "linalg_qr": NumpyCall("(*np.linalg.qr(x),)", f"mode == 'reduced' and {_OF_LAPACK}"),
    "linalg_eigh": NumpyCall("(*np.linalg.eigh(x),)", _OF_LAPACK),
    "linalg_slogdet": NumpyCall("(*np.linalg.slogdet(x),)", _OF_LAPACK),
    "linalg_svd": NumpyCall("(*np.linalg.svd(x, full_matrices),)", _IS_FINITE),
    "linalg_svdvals": NumpyCall("np.linalg.svd(x, compute_uv=False)", _IS_FINITE),
    "linalg_pinv": NumpyCall("np.linalg.pinv(x, rtol=rtol)", _IS_FINITE),
    "linalg_matrix_rank": NumpyCall(
        "np.linalg.matrix_rank(x, rtol=rtol)", f"x.ndim > 1 and x.size and {_IS_FINITE}"
    ),
    "fft_fft": NumpyCall("np.fft.fft(x, None, axis, norm)", _HAS_POINTS),
    "fft_ifft": NumpyCall("np.fft.ifft(x, None, axis, norm)", _HAS_POINTS),
    "fft_rfft": NumpyCall(
        "np.fft.rfft(x, None, axis, norm)", f"x.dtype.kind != 'c' and {_HAS_POINTS}"
    ),
    "fft_irfft": NumpyCall("np.fft.irfft(x, None, axis, norm)", _HAS_HALF_A_SPECTRUM),
    "fft_hfft": NumpyCall("np.fft.hfft(x, None, axis, norm)", _HAS_HALF_A_SPECTRUM),
    "fft_ihfft": NumpyCall(
        "np.fft.ihfft(x, None, axis, norm)", f"x.dtype.kind != 'c' and {_HAS_POINTS}"
    ),
    "fft_fftn": NumpyCall("np.fft.fftn(x, None, None, norm)", _ALL_HAVE_POINTS),
    "fft_ifftn": NumpyCall("np.fft.ifftn(x, None, None, norm)", _ALL_HAVE_POINTS),
    "fft_rfftn": NumpyCall(
        "np.fft.rfftn(x, None, None, norm)", f"x.dtype.kind != 'c' and {_ALL_HAVE_POINTS}"
    ),
    "fft_irfftn": NumpyCall(
        "np.fft.irfftn(x, None, None, norm)", f"{_ALL_HAVE_POINTS} and x.shape[-1] > 1"
    ),
    "fft_fftfreq": NumpyCall("np.fft.fftfreq(n, d)", _HAS_FREQUENCIES),
    "fft_rfftfreq": NumpyCall("np.fft.rfftfreq(n, d)", _HAS_FREQUENCIES),
    "fft_fftshift": NumpyCall("np.fft.fftshift(x)", "axes is None and x.ndim"),
    "fft_ifftshift": NumpyCall("np.fft.ifftshift(x)", "axes is None and x.ndim"),
}
