"""16-bit floating-point dtypes: accumulate in float32, and promote with Python scalars.

Sums and products accumulate in float32 and round once, as PyTorch's CPU kernels do; the result has
the dtype of the arguments. NumPy accumulates bfloat16 in bfloat16, where 256 + 1 is 256, returns
float32 for products of bfloat16, and does not use BLAS for float16.

NumPy promotes bfloat16 and a Python float to float32. In the standard and in PyTorch, a scalar does
not change the dtype of an array of its kind: the result is computed in float32, and rounded.
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

# For bfloat16, CuPy 14 returns float32 or float64 from these functions, or raises: it sorts with
# Thrust, which supports NumPy's own dtypes only.
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
    """Return ``call`` with 16-bit arrays converted to float32, and its result converted back.

    The result has the dtype of the arrays; it is float32 for arrays of both 16-bit dtypes, and has
    ``dtype`` if given. Return None for operators that accumulate in float32 already. float16 is
    converted for products only: NumPy accumulates sums of it in float32.
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
    """Return CuPy's ``call`` with bfloat16 converted to float32, and its results converted back.

    Fourier transforms return complex64 or float32, as on the host. Return None for operators that
    CuPy implements for bfloat16, such as products. ``nextafter`` raises ArgumentError for bfloat16:
    the neighbour of a number in float32 is another one.
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
    """Return ``call``, raising ArgumentError for 16-bit arrays if it is a factorization.

    LAPACK does not support them.
    """
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
    """Return ``call`` with its result converted to the array's dtype if that is an ml_dtypes float.

    Boolean results, and complex results of a complex scalar, are kept. Return None for operators
    that do not promote an array with a Python scalar.
    """
    if not function.schema.name.overload_name.startswith("Scalar") or len(function.promoted) != 2:
        return None
    names = [argument.name for argument in function.schema.arguments]
    types = {argument.name: str(argument.type) for argument in function.schema.arguments}
    [place] = [names.index(each) for each in function.promoted if types[each] == "Tensor"]
    [scalar] = [names.index(each) for each in function.promoted if types[each] == "Scalar"]
    is_step = function.schema.name.name == "nextafter"  # whose spacing depends on the dtype of both

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
