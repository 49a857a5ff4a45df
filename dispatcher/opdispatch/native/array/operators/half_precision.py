"""Short floating-point numbers: sums and products in float32, and Python scalars beside them.

Sums and products are added up in float32, and rounded once.

NumPy adds bfloat16 in bfloat16, where 256 + 1 is 256; its products of bfloat16 are float32, and
those of float16 do without BLAS. PyTorch's kernels for the CPU accumulate in float32 as well, and
have the dtype of their arguments.

NumPy makes float32 of bfloat16 and a Python float. By the standard, and in PyTorch, a scalar does
not change the dtype of an array of its kind: it is calculated so, and rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from opdispatch.arrays import MetaArray
from opdispatch.errors import ArgumentError
from opdispatch.native.array.operators.functions import ArrayFunction
from opdispatch.native.array.operators.type_promotion import kind_of_numbers
from opdispatch.schema.scalar_type import find_dtype_of_name

_BOOL = np.dtype(np.bool)
_FLOAT32 = np.dtype(np.float32)
_FLOAT16 = np.dtype(np.float16)
_BFLOAT16 = find_dtype_of_name("bfloat16")

_PRODUCTS = ("linalg_matrix_power", "matmul", "tensordot", "vecdot")
_SUMS = (
    *("clip", "cumulative_prod", "cumulative_sum", "linalg_matrix_norm", "linalg_trace"),
    *("linalg_vector_norm", "mean", "prod", "std", "sum", "var"),
)

# CuPy 14 makes float32 or float64 of bfloat16 in these, or has none of them for it: Thrust, with
# which it sorts, knows NumPy's own types alone.
_WITHOUT_BFLOAT16 = (
    *_SUMS,
    *("argsort", "isin", "sort", "unique_all", "unique_counts", "unique_inverse", "unique_values"),
    *("atan2", "copysign", "hypot", "linalg_matrix_power", "logaddexp", "round", "tril", "triu"),
    *("where", "fft_fft", "fft_fftn", "fft_hfft", "fft_ifft", "fft_ifftn", "fft_ihfft"),
    *("fft_irfft", "fft_irfftn", "fft_rfft", "fft_rfftn"),
)

FACTORIZATIONS = (
    *("linalg_cholesky", "linalg_det", "linalg_eig", "linalg_eigh", "linalg_eigvals"),
    *("linalg_eigvalsh", "linalg_inv", "linalg_matrix_rank", "linalg_pinv", "linalg_qr"),
    *("linalg_slogdet", "linalg_solve", "linalg_svd", "linalg_svdvals"),
)


def in_float32(function: ArrayFunction, call: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return ``call`` with arrays of 16-bit numbers converted, and its result converted back.

    The result has the dtype of the arrays, unless another is asked for, or they have two: then it
    is float32. None for operators that need it for no dtype. NumPy itself adds float16 in float32,
    but for products.
    """
    name = function.schema.name.name
    if name not in (*_PRODUCTS, *_SUMS):
        return None
    dtypes = (_BFLOAT16, _FLOAT16) if name in _PRODUCTS else (_BFLOAT16,)

    def call_in_float32(*args: Any, **kwargs: Any) -> Any:
        given = {each.dtype for each in args if hasattr(each, "dtype")}
        if not given or not given.issubset(dtypes):
            return call(*args, **kwargs)
        result = call(*(_converted(each, _FLOAT32) for each in args), **kwargs)
        if len(given) > 1 or kwargs.get("dtype") is not None:
            return result
        return _converted(result, given.pop())

    return call_in_float32


def in_float32_for_cupy(
    function: ArrayFunction, call: Callable[..., Any]
) -> Callable[..., Any] | None:
    """Return ``call``, a function of CuPy's, with bfloat16 converted to float32, and float32 back.

    As on the host, transforms give numbers of 32 bits. None for operators that CuPy has for
    bfloat16, products among them. ``nextafter`` is refused: what is next to a number in float32 is
    something else.
    """
    name = function.schema.name.name
    if name not in (*_WITHOUT_BFLOAT16, "nextafter"):
        return None

    def call_in_float32(*args: Any, **kwargs: Any) -> Any:
        given = {each.dtype for each in args if getattr(each, "dtype", _BOOL) != _BOOL}
        if _BFLOAT16 not in given:
            return call(*args, **kwargs)
        if name == "nextafter":
            raise ArgumentError(
                "array::nextafter has no bfloat16 on a GPU",
                hint="move the tensor to the host with Tensor.to",
                operator=name,
            )
        result = call(*(_widened(each) for each in args), **kwargs)
        if len(given) > 1 or kwargs.get("dtype") is not None or name.startswith("fft_"):
            return result
        if isinstance(result, tuple):
            return tuple(_narrowed(each) for each in result)
        return _narrowed(result)

    return call_in_float32


def refusing_16_bits(function: ArrayFunction, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call``; a factorization raises ArgumentError for dtypes that LAPACK lacks."""
    name = function.schema.name.name
    if name not in FACTORIZATIONS:
        return call

    def call_with_more(*args: Any, **kwargs: Any) -> Any:
        for each in args:
            if getattr(each, "dtype", None) in (_FLOAT16, _BFLOAT16):
                raise ArgumentError(
                    f"array::{name} was given {each.dtype}; expected numbers of 32 bits or more",
                    hint="convert the array with astype",
                    operator=name,
                )
        return call(*args, **kwargs)

    return call_with_more


def keeping_dtype(function: ArrayFunction, call: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return ``call`` with a result of the array's dtype, where that is a floating one of
    ml_dtypes.

    Booleans, and complex numbers that come of a complex scalar, stay. None for operators without a
    Python scalar beside an array.
    """
    if not function.schema.name.overload_name.startswith("Scalar") or len(function.promoted) != 2:
        return None
    names = [argument.name for argument in function.schema.arguments]
    types = {argument.name: str(argument.type) for argument in function.schema.arguments}
    [place] = [names.index(each) for each in function.promoted if types[each] == "Tensor"]
    [scalar] = [names.index(each) for each in function.promoted if types[each] == "Scalar"]
    is_step = function.schema.name.name == "nextafter"  # to the next number of which type?

    def call_keeping_dtype(*args: Any, **kwargs: Any) -> Any:
        dtype = args[place].dtype
        if is_step:
            args = (*args[:scalar], dtype.type(args[scalar]), *args[scalar + 1 :])
        result = call(*args, **kwargs)
        if result.dtype == dtype or result.dtype.kind in "bc" or kind_of_numbers(dtype) != "f":
            return result
        return _converted(result, dtype)

    return call_keeping_dtype


def _widened(value: Any) -> Any:
    return value.astype(_FLOAT32) if getattr(value, "dtype", None) == _BFLOAT16 else value


def _narrowed(value: Any) -> Any:
    return value.astype(_BFLOAT16) if value.dtype == _FLOAT32 else value


def _converted(value: Any, dtype: np.dtype[Any]) -> Any:
    if type(value) is MetaArray:
        return MetaArray(value.shape, dtype)
    return value.astype(dtype) if hasattr(value, "dtype") else value
