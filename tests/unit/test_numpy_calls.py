"""The short ways to NumPy: they do what its functions do, and no more is taken for granted."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy
import numpy as np
import pytest

from opdispatch import array_api as xp
from opdispatch.native.array.operators.functions import FUNCTIONS, ArrayFunction
from opdispatch.native.array.operators.indexing import INDEXING, getitem
from opdispatch.native.array.operators.kernels import make_kernel
from opdispatch.native.array.operators.library_functions import find_function
from opdispatch.native.array.operators.numpy_calls import NUMPY_CALLS

BY_NAME = {each.operator: each for each in (*FUNCTIONS, *INDEXING)}

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "of doubles, backwards": np.linspace(3.0, -1.0, 4)[::-1],
    "transposed": np.arange(24, dtype=np.int64).reshape(2, 3, 4).T,
    "of small integers": np.array([100, 100, 100], np.int8),
    "of bytes": np.array([[200, 100], [7, 9]], np.uint8),
    "of booleans": np.array([[True, False], [False, False]]),
    "complex": np.array([3 + 4j, 1j, -2], np.complex64),
    "with NaN": np.array([1.0, np.nan, -np.inf, np.nan]),
    "with infinities": np.array([np.inf, -1.0, -0.0, -np.inf, 3.0], np.float32),
    "of halves": np.array([60000.0, 60000.0, 1.0], np.float16),
    "big-endian": np.array([3.0, 1.0, 2.0], ">f8"),
    "without dimensions": np.array(3.0),
    "empty": np.empty((0, 3), np.float32),
    "of one element": np.ones((1, 1, 1), np.float32),
}
AXES: list[Any] = [None, 0, -1, 1, 7]
SEVERAL_AXES: list[Any] = [None, [0], [-1], [0, 1], [1, 0], [], [0, 0], [9]]
KEEPDIMS = [False, True]
DTYPES: list[Any] = [None, np.dtype("float64"), np.dtype("int16"), np.dtype("complex128")]

Call = Callable[[Callable[..., Any], np.ndarray], Any]


def _reduced(**options: list[Any]) -> list[Call]:
    names = tuple(options)
    return [
        lambda f, x, given=given: f(x, **dict(zip(names, given, strict=True)))
        for given in itertools.product(*options.values())
    ]


_OF_AXES = _reduced(axis=SEVERAL_AXES, keepdims=KEEPDIMS)
_OF_TYPES = _reduced(axis=SEVERAL_AXES, dtype=DTYPES, keepdims=KEEPDIMS)
_SPREADS = _reduced(axis=SEVERAL_AXES, correction=[0, 1.0, 5, 1j], keepdims=KEEPDIMS)
_PLACES = _reduced(axis=AXES, keepdims=KEEPDIMS)
_RUNNING = _reduced(axis=AXES, dtype=DTYPES, include_initial=KEEPDIMS)
_SORTS = _reduced(axis=[0, -1, 1, 7], descending=KEEPDIMS, stable=KEEPDIMS)
_TRANSFORMS = _reduced(n=[None, 0, 3], axis=AXES[1:], norm=["backward", "ortho", "sideways"])
_SHAPES: list[Any] = [[], [0], [6], [3, 2], [-1], [2, -1], [-1, -1], [-2, 3], [0, 3], [1 << 62, 8]]
_FREQUENCIES: list[Call] = [
    lambda f, x, n=n, d=d, dtype=dtype: f(n, d=d, dtype=dtype, device=None)
    for n, d, dtype in itertools.product((1, 4, 0, -1), (1.0, 0.5, 0, -2, np.nan), DTYPES[:2])
]
_NEW = [
    lambda f, x, shape=shape, dtype=dtype: f(shape, dtype=dtype, device=None)
    for shape, dtype in itertools.product(([], [0], [2, 3], [-1], [1 << 62, 8]), DTYPES)
]

_ALONE: list[Call] = [lambda f, x: f(x)]
_OF_SQUARES: list[Call] = [*_ALONE, lambda f, x: f(np.eye(2, dtype=x.dtype) * 2)]
_LIKE = [lambda f, x, dtype=dtype: f(x, dtype=dtype, device=None) for dtype in DTYPES]
_OTHERS: list[Callable[[np.ndarray], np.ndarray]] = [
    lambda x: x,
    lambda x: np.ones(3, x.dtype),
    lambda x: np.ones((3, 2), x.dtype),
    lambda x: np.eye(2, dtype=x.dtype),
    lambda x: np.array(1, x.dtype),
    lambda x: x.T,
]
# With infinities of both signs beside, and below, numbers of both.
_DIVISORS: list[Callable[[np.ndarray], np.ndarray]] = [
    *_OTHERS,
    *(
        lambda x, value=value: np.full(x.shape, value).astype(x.dtype)
        for value in (2.0, -0.5, 0.0, np.inf, -np.inf, np.nan, 1e30)
    ),
    lambda x: np.resize([1.0, -np.inf, 0.0, np.inf, np.nan], x.shape).astype(x.dtype),
    lambda x: x[::-1] if x.ndim else x,
]


def _positive_definite(x: np.ndarray) -> np.ndarray:
    """A matrix, or matrices, of that type."""
    return np.broadcast_to(np.eye(2) * 2 + 1, (3, 2, 2) if x.ndim > 2 else (2, 2)).astype(x.dtype)


_SHIFTS = _reduced(axes=[None, [0], [-1], [0, 1], [], [9]])

CALLS: dict[str, list[Call]] = {
    **dict.fromkeys(("sum", "prod"), _OF_TYPES),
    **dict.fromkeys(("max", "min", "all", "any", "mean"), _OF_AXES),
    **dict.fromkeys(("std", "var"), _SPREADS),
    **dict.fromkeys(("argmax", "argmin"), _PLACES),
    **dict.fromkeys(("cumulative_sum", "cumulative_prod"), _RUNNING),
    **dict.fromkeys(("sort", "argsort"), _SORTS),
    **dict.fromkeys(("empty", "ones", "zeros"), _NEW),
    **dict.fromkeys(("empty_like", "ones_like", "zeros_like"), _LIKE),
    "full_like": [
        lambda f, x, fill=fill, dtype=dtype: f(x, fill, dtype=dtype, device=None)
        for fill, dtype in itertools.product((1, True, 2.5, 1j), DTYPES)
    ],
    "arange": [
        lambda f, x, bounds=bounds, dtype=dtype: f(*bounds, dtype=dtype, device=None)
        for bounds, dtype in itertools.product(
            (
                *((0.0, 1.0, 0.25), (1.5, -1.5, -0.5), (0.0, 1.0, 0.0), (0.0, 1.0, 1e-300)),
                *((0.0, np.inf, 1.0), (np.nan, 1.0, 1.0), (1.0, 0.0, 0.5), (0.0, 1.0, -np.inf)),
                *((5,), (-2,), (2, 7), (7, 2, -2), (0, 5, 0), (0.5, 3), (0, 2.5, 0.5), (True,)),
                *((1 << 62, (1 << 62) + 3), (2**63 - 1,), (0, 3, 2**40), (1j,)),
            ),
            DTYPES,
        )
    ],
    "eye": [
        lambda f, x, size=size, k=k, dtype=dtype: f(*size, k=k, dtype=dtype, device=None)
        for size, k, dtype in itertools.product(((3,), (2, 3), (0, 2), (-1,)), (0, 1, -5), DTYPES)
    ],
    "linspace": [
        lambda f, x, ends=ends, num=num, dtype=dtype, endpoint=endpoint: f(
            *ends, num, dtype=dtype, device=None, endpoint=endpoint
        )
        for ends, num, dtype, endpoint in itertools.product(
            ((0, 1), (0.5, -3.0), (0.0, 1j), (2, 2)), (5, 1, 0, -1), DTYPES, (True, False)
        )
    ],
    "repeat": [
        lambda f, x, repeats=repeats, axis=axis: f(x, repeats, axis=axis)
        for repeats, axis in itertools.product((0, 1, 3, -1, 1 << 62), AXES)
    ],
    "repeat.Tensor": [
        lambda f, x, repeats=repeats, axis=axis: f(x, repeats, axis=axis)
        for repeats, axis in itertools.product(
            (
                *(np.array([2, 0, 1]), np.array([3], np.int8), np.array([1, -1, 1]), np.array(2)),
                *(np.array([1, 2, 1], np.uint64), np.array([1 << 61, 1 << 61, 1 << 61])),
                *(np.ones(3), np.empty(0, np.int64), np.ones((1, 3), np.int64)),
            ),
            AXES,
        )
    ],
    "roll": [
        lambda f, x, shift=shift, axis=axis: f(x, shift, axis=axis)
        for shift, axis in itertools.product(([1], [-2], [1, 2], []), SEVERAL_AXES)
    ],
    "diff": [
        lambda f, x, n=n, axis=axis, ends=ends: f(
            x, axis=axis, n=n, prepend=x if ends else None, append=None
        )
        for n, axis, ends in itertools.product((0, 1, 2, -1), (0, -1, 1, 7), (False, True))
    ],
    "meshgrid": [
        lambda f, x, put=put, indexing=indexing: f(put(x), indexing=indexing)
        for put, indexing in itertools.product(
            (lambda x: [], lambda x: [x], lambda x: [x, x[:1] if x.ndim else x, x]),
            ("xy", "ij", "no"),
        )
    ],
    "clip": [
        lambda f, x, low=low, high=high: f(x, low, high)
        for low, high in itertools.product((None, 0, 0.5, 1j, np.nan), (None, 2, 1.5, True))
    ],
    "floor_divide.Tensor": [lambda f, x, other=other: f(x, other(x)) for other in _DIVISORS],
    "floor_divide.Scalar": [
        lambda f, x, number=number: f(x, number)
        for number in (2, 0.5, True, 0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, 1e-30, -3.5)
    ],
    "tile": [
        lambda f, x, repetitions=repetitions: f(x, repetitions)
        for repetitions in ([2], (3,), [0], [], [2, 1], [-1], [1 << 62], [1 << 40])
    ],
    "where.ScalarSelf": [
        lambda f, x, other=other: f(x != 0, other, x) for other in (0.0, 1, 300, 1j)
    ],
    "where.ScalarOther": [
        lambda f, x, other=other, condition=condition: f(
            np.asarray(condition) if condition is not None else x != 0, x, other
        )
        for other, condition in itertools.product((0.0, 1, 300, 1j), (None, True, 1.5, [1, 0]))
    ],
    **dict.fromkeys(
        ("nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"), _ALONE
    ),
    "count_nonzero": _OF_AXES,
    "searchsorted": [
        lambda f, x, side=side, sorter=sorter, of=of: f(np.sort(x), of(x), side=side, sorter=sorter)
        for side, sorter, of in itertools.product(
            ("left", "right", "up"),
            (None, np.array([1, 0]), np.array([2, 0, 1])),
            (lambda x: x, lambda x: x[..., None], lambda x: np.array([1j])),
        )
    ],
    "vecdot": [
        lambda f, x, other=other, axis=axis: f(x, other(x), axis=axis)
        for other, axis in itertools.product(_OTHERS, (-1, 0, -2))
    ],
    "tensordot": [
        lambda f, x, other=other, axes=axes: f(x, other(x), axes=axes)
        for other, axes in itertools.product(_OTHERS, (0, 1, 2, 3, -1))
    ],
    "tensordot.dims": [
        lambda f, x, other=other, axes=axes: f(x, other(x), axes=axes)
        for other, axes in itertools.product(
            _OTHERS, ([[-1], [0]], [[0], [0]], [[9], [0]], [[], []], [[0, 1], [1, 0]], [[0]])
        )
    ],
    "linalg_outer": [lambda f, x, other=other: f(x, other(x)) for other in _OTHERS],
    **dict.fromkeys(("linalg_eigh", "linalg_slogdet", "linalg_svdvals"), _OF_SQUARES),
    "linalg_svd": _reduced(full_matrices=[True, False]),
    "linalg_cholesky": [
        lambda f, x, upper=upper, put=put: f(put(x), upper=upper)
        for upper, put in itertools.product((False, True), (_positive_definite, lambda x: x))
    ],
    **dict.fromkeys(("linalg_pinv", "linalg_matrix_rank"), _reduced(rtol=[None, 0.5])),
    "linalg_trace": _reduced(offset=[0, 1, -1, 5, 1 << 40], dtype=DTYPES),
    "linalg_vector_norm": _reduced(
        axis=SEVERAL_AXES, keepdims=KEEPDIMS, ord=[2, 1.0, 0, np.inf, -2.5, 1j]
    ),
    "linalg_solve": [
        lambda f, x, other=other: f(x @ x.T + np.eye(2, dtype=x.dtype) if x.ndim == 2 else x, other)
        for other in (np.ones(2), np.eye(2), np.ones((2, 1), np.complex64), np.ones(3))
    ],
    **dict.fromkeys(("linalg_det", "linalg_inv"), _OF_SQUARES),
    "linalg_qr": _reduced(mode=["reduced", "complete", "raw"]),
    "full": [
        lambda f, x, fill=fill, dtype=dtype: f([2, 2], fill, dtype=dtype, device=None)
        for fill, dtype in itertools.product((1, True, 2.5, 1j), DTYPES)
    ],
    "astype": [
        lambda f, x, dtype=dtype, copy=copy: f(x, dtype, copy=copy, device=None)
        for dtype, copy in itertools.product((*DTYPES[1:], np.dtype("bool")), (True, False))
    ],
    "concat": [
        lambda f, x, put=put, axis=axis: f(put(x), axis=axis)
        for put, axis in itertools.product(
            (
                lambda x: [],
                lambda x: [x],
                lambda x: [x, x[:1]] if x.ndim else [x, x],
                lambda x: (x, np.ones(3, np.float32)),
                lambda x: [x, x.astype(np.float64), x],
            ),
            AXES,
        )
    ],
    "stack": [
        lambda f, x, put=put, axis=axis: f(put(x), axis=axis)
        for put, axis in itertools.product(
            (
                lambda x: [],
                lambda x: [x],
                lambda x: (x, x, x),
                lambda x: [x, x[:1]] if x.ndim else [x, x],
                lambda x: [x, x.astype(np.float64)],
            ),
            AXES[1:],
        )
    ],
    "getitem": [
        lambda f, x, entries=entries: f(x, *([each] for each in entries))
        for entries in (
            *((0, None, None), (None, None, None), (9, None, None), (-1, None, None)),
            *((1, None, 1), (None, None, -1), (None, 2, 1), (-1, 0, -2), (0, 2, 0), (9, 1, 3)),
        )
    ]
    + [
        lambda f, x, entries=entries: f(x, *entries)
        for entries in (
            *(([0, None], [None, None], [None, 1]), ([0, 1], [None, None], [None, None])),
            *(([None, 0], [2, None], [1, None]), ([1, None], [None, 2], [1, -1])),
            *(([None, None], [None, 1], [None, 1]), ([0, 9], [None, None], [None, None])),
            *(([], [], []), ([0], [None, None], [None]), ([0, 0, 0], [None] * 3, [None] * 3)),
        )
    ],
    "getitem.Tensor": [
        lambda f, x, start=start, array=array: f(x, start, [None], [None], [array])
        for start, array in (
            *(([None], np.array([0, -1])), ([None], np.array([[0], [1]]))),
            *(([None], np.array([7])), ([None], np.array([True, False])), ([None], np.array(0))),
            *(([None], np.array([0.5])), ([1], np.array([0])), ([None], None), ([1], None)),
        )
    ]
    + [lambda f, x: f(x, [None, 0], [None] * 2, [None] * 2, [np.array([0, 1]), None])],
    "broadcast_to": [
        lambda f, x, shape=shape: f(x, shape(x))
        for shape in (
            lambda x: list(x.shape),
            lambda x: [2, *x.shape],
            lambda x: (3, 1, *x.shape),
            lambda x: [0, *x.shape],
            lambda x: [],
            lambda x: [7],
            lambda x: [-1, *x.shape],
            lambda x: [1 << 62, *x.shape],
            lambda x: [1] * 70,
        )
    ],
    "take": [
        lambda f, x, at=at, axis=axis: f(x, np.array(at, np.int64), axis=axis)
        for at, axis in itertools.product(([0], [1, 0, 1], [[0], [1]], [], [9], [-1]), AXES)
    ],
    "reshape": [
        lambda f, x, shape=shape, copy=copy: f(x, shape, copy=copy)
        for shape, copy in itertools.product(_SHAPES, (None, True, False))
    ],
    "expand_dims": [
        lambda f, x, axis=axis: f(x, axis) for axis in ([0], [-1], [1], [-2], [4], [9], [0, 1], [])
    ],
    "unstack": [lambda f, x, axis=axis: f(x, axis=axis) for axis in (0, -1, 1, 7)],
    "permute_dims": [
        lambda f, x, axes=axes: f(x, axes)
        for axes in ([], [0], [1, 0], [0, 1], [2, 0, 1], [-1, 0], [0, 0], [5, 0])
    ],
    "matrix_transpose": _ALONE,
    "sign": _ALONE,
    **dict.fromkeys(
        ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_hfft", "fft_ihfft"), _TRANSFORMS
    ),
    **dict.fromkeys(("fft_fftfreq", "fft_rfftfreq"), _FREQUENCIES),
    **dict.fromkeys(
        ("fft_fftn", "fft_ifftn", "fft_rfftn", "fft_irfftn"),
        _reduced(s=[None, [2]], axes=[None, [0], []], norm=["backward", "ortho", "sideways"]),
    ),
    **dict.fromkeys(("fft_fftshift", "fft_ifftshift"), _SHIFTS),
    "matmul": [
        lambda f, x, other=other: f(x, other.astype(x.dtype))
        for other in (np.ones((3, 2)), np.ones(3), np.ones((2, 2)), np.array(1.0))
    ],
}


def test_each_short_way_is_tried_here():
    assert CALLS.keys() == NUMPY_CALLS.keys()


def _kernels(function: ArrayFunction) -> tuple[Callable[..., Any], Callable[..., Any]]:
    is_index = function in INDEXING
    found = getitem if is_index else find_function(array_api_compat.numpy, function)
    return make_kernel(function, found, None, NUMPY_CALLS[function.operator]), make_kernel(
        function, found
    )


def _outcome(call: Call, function: Callable[..., Any], x: np.ndarray) -> Any:
    try:
        result = call(function, x)
    except Exception as error:
        return type(error), str(error)
    results = result if isinstance(result, tuple | list) else [result]
    return [(type(x), x.dtype, x.shape, _steps(x), x.tobytes()) for x in results]


def _steps(x: np.ndarray | np.generic) -> list[int]:
    """Return the strides along which there is more than one element."""
    if not x.size:
        return []
    return [by for by, extent in zip(x.strides, x.shape, strict=True) if extent > 1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("operator", NUMPY_CALLS)
def test_short_call_agrees_with_general_kernel(operator: str):
    short, long = _kernels(BY_NAME[operator])
    outcomes = []
    for (name, x), call in itertools.product(ARRAYS.items(), CALLS[operator]):
        got, wanted = (_outcome(call, function, x) for function in (short, long))
        if operator.startswith("empty") and type(wanted) is list:
            # Without the elements, which could be any.
            got, wanted = ([each[:-1] for each in x] for x in (got, wanted))
        assert got == wanted, name
        outcomes.append(type(wanted) is list)
    assert any(outcomes), "nothing but errors"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("operator", NUMPY_CALLS)
def test_short_call_is_used(operator: str):
    def long_way(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    function = BY_NAME[operator]
    short = make_kernel(function, long_way, None, NUMPY_CALLS[operator])
    calls = itertools.product(ARRAYS.values(), CALLS[operator])
    assert any(type(_outcome(call, short, x)) is list for x, call in calls)


@pytest.mark.parametrize("operator", ["reshape", "permute_dims", "matrix_transpose"])
def test_views_are_views(operator: str):
    short, _ = _kernels(BY_NAME[operator])
    x = np.zeros((2, 3))
    view = {"reshape": lambda: short(x, [6]), "permute_dims": lambda: short(x, [1, 0])}.get(
        operator, lambda: short(x)
    )()
    view[...] = 1.0
    assert x.all()


@pytest.mark.parametrize("shape", [[2, 3], [4, 2, 3]])
def test_a_broadcast_view_is_of_its_array_and_writable_if_each_element_is_there_once(shape):
    short, _ = _kernels(BY_NAME["broadcast_to"])
    x = np.zeros((2, 3))
    view = short(x, shape)
    assert view.base is x
    assert view.flags.writeable == (len(shape) == 2)


@pytest.mark.parametrize("operator", NUMPY_CALLS)
def test_short_call_warns_like_general_kernel(operator: str):
    short, long = _kernels(BY_NAME[operator])
    large = np.full((2, 2), 3e38, np.float32)
    for x, call in itertools.product([*ARRAYS.values(), large], CALLS[operator]):
        outcomes, warned = [], []
        for function in (short, long):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcomes.append(_outcome(call, function, x))
            warned.append({str(each.message) for each in caught})
        if type(outcomes[0]) is list:
            assert warned[0] == warned[1]


MASKED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sum": (lambda x: xp.sum(x), 3.0),
    "mean": (lambda x: xp.mean(x, axis=0), 1.5),
    "max": (lambda x: xp.max(x), 2.0),
    "std": (lambda x: xp.std(x), 0.5),
    "cumulative_sum": (lambda x: xp.cumulative_sum(x)[:2], [1.0, 3.0]),
}


@pytest.mark.parametrize(("call", "wanted"), MASKED.values(), ids=list(MASKED))
def test_masked_elements_do_not_count(call: Callable[[Any], Any], wanted: Any):
    """Use the methods of a class for its own elements, not ufuncs."""
    masked = np.ma.masked_array([1.0, 2.0, 50.0], mask=[False, False, True])
    np.testing.assert_array_equal(call(masked), wanted)
