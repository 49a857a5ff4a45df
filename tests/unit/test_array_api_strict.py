"""``opdispatch.array_api`` beside array-api-strict: what that computes, it computes as well.

array-api-strict is the standard's own library to test with, over NumPy. Shapes, types and elements
are compared; where it refuses something, anything may happen.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from opdispatch import Tensor
from opdispatch import array_api as xp
from opdispatch.native.array.operators.functions import BINARY, FUNCTIONS, UNARY

StrictArray = type(strict.zeros(0))
StrictType = type(strict.int8)

BOOL, INTEGERS = ["bool"], ["int8", "int16", "int64", "uint8", "uint32", "uint64"]
REALS, COMPLEXES = ["float32", "float64"], ["complex64", "complex128"]
FLOATS = [*REALS, *COMPLEXES]
EVERY = [*BOOL, *INTEGERS, *FLOATS]
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5]
SCALARS = [True, 0, 3, -2, 2.5, -0.0, math.nan, 2 + 1j]


def filled(seed: int, shape: tuple[int, ...], dtype: str, is_finite: bool) -> np.ndarray:
    """An array of random elements, some of them special."""
    random, kind = np.random.default_rng(seed), np.dtype(dtype).kind

    def real() -> np.ndarray:
        numbers = random.normal(size=shape) * 3
        is_special = random.random(shape) < (0.0 if is_finite else 0.3)
        return np.where(is_special, random.choice(SPECIAL, shape), numbers)

    if kind == "c":
        return np.asarray(real() + 1j * random.normal(size=shape)).astype(dtype)
    if kind == "f":
        return np.asarray(real()).astype(dtype)
    return np.asarray(
        random.integers(0 if kind in "bu" else -5, 2 if kind == "b" else 6, shape)
    ).astype(dtype)


SEEDS = st.integers(0, 2**32)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
PAIRS = [
    *(((), ()), ((2, 3), (3,)), ((1, 3), (2, 1)), ((0,), (1,)), ((), (2,)), ((3,), (3,))),
    *(((2, 2), (2, 2)), ((2, 3), (3, 2)), ((2, 1, 2, 3), (3, 3, 1)), ((2, 0), (0, 2))),
]
SQUARES = [(2, 2), (3, 3), (0, 0), (1, 1), (2, 3, 3), (2, 0, 2, 2)]
MATRICES = [*SQUARES, (2, 3), (3, 2), (0, 2), (2, 0), (2, 1, 3), (0, 3, 2)]


def of(dtypes: list[str] = EVERY, shapes: Any = SHAPES, is_finite: bool = False) -> Any:
    """Arrays of those types and shapes."""
    chosen = st.sampled_from(shapes) if isinstance(shapes, list) else shapes
    return st.builds(filled, SEEDS, chosen, st.sampled_from(dtypes), st.just(is_finite))


def two_of(dtypes: list[str] = EVERY, shapes: Any = PAIRS, is_finite: bool = False) -> Any:
    """Two arrays, of one type or of any two."""
    dtype = st.sampled_from(dtypes)
    return st.builds(
        lambda seed, pair, one, other: (
            filled(seed, pair[0], one, is_finite),
            filled(seed + 1, pair[1], other, is_finite),
        ),
        SEEDS,
        st.sampled_from(shapes),
        *(st.shared(dtype), st.shared(dtype) | dtype),
    )


def call(*arguments: Any, **keywords: Any) -> Any:
    """Call with values of those strategies; keywords may be left out."""
    return st.tuples(st.tuples(*arguments), st.fixed_dictionaries({}, optional=keywords))


def spread(arguments: Any, **keywords: Any) -> Any:
    """As ``call``, with the positional arguments out of one strategy."""
    return st.tuples(arguments.map(tuple), st.fixed_dictionaries({}, optional=keywords))


BOTH, NUMBER = st.booleans(), st.sampled_from([0, 1, -3, 10, 2.5, -0.25])
AXIS, PLACE = st.none() | st.integers(-2, 1), st.integers(-2, 1)
SEVERAL = st.lists(PLACE, max_size=2).map(tuple)
AXES = AXIS | SEVERAL
DTYPE = st.sampled_from([np.dtype(name) for name in EVERY])
NEW = {"dtype": st.none() | DTYPE}
SCALAR = st.sampled_from(SCALARS)
# NumPy has an axis 0 where there are no dimensions.
WIDE = of(shapes=SHAPES.filter(len))
# LAPACK may never come back from infinities.
X, FLOAT, MATRIX, SQUARE = of(), of(FLOATS), of(FLOATS, MATRICES, True), of(FLOATS, SQUARES, True)
INDEX = of(INTEGERS, is_finite=True).map(lambda array: (array % 2).astype(array.dtype))
LIST = st.builds(
    lambda seed, shape, dtypes: [
        filled(seed + n, shape, each, True) for n, each in enumerate(dtypes)
    ],
    *(SEEDS, SHAPES, st.lists(st.sampled_from(EVERY), min_size=1, max_size=3)),
) | st.lists(X, max_size=3)
THREE = st.builds(
    lambda seed, shape, dtype: tuple(filled(seed + n, shape, dtype, False) for n in range(3)),
    *(SEEDS, SHAPES, st.sampled_from(EVERY)),
)
FACTORS = two_of(FLOATS, is_finite=True) | two_of(["int8", "int16", "uint8"], is_finite=True)
POSITIVE = SQUARE.map(
    lambda x: ((x + x.conj().swapaxes(-1, -2)) / 2 + 20 * np.eye(x.shape[-1])).astype(x.dtype)
)
EXTENT = st.integers(0, 3) | SHAPES
WAVE = of(FLOATS, [(2,), (4,), (2, 3), (3, 2), (1,)], is_finite=True)
NORM = st.sampled_from(["backward", "ortho", "forward"])
RTOL = st.sampled_from([None, 0.1, 0.0])
SIDES = st.sampled_from([None, (0,), (1, 0), [-1]])

# Where arrays of few types are taken.
TYPES = {
    **dict.fromkeys(("atan2", "copysign", "hypot", "logaddexp", "nextafter"), REALS),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), BOOL),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), INTEGERS),
}


def either_way(dtypes: list[str], is_finite: bool = False) -> Any:
    """Call with two arrays, or with an array and a scalar."""
    x = of(dtypes, is_finite=is_finite)
    two = two_of(dtypes, is_finite=is_finite)
    return spread(two | st.tuples(x, SCALAR) | st.tuples(SCALAR, x))


CALLS: dict[str, Any] = {
    **{name: call(X) for name in UNARY},
    **{name: either_way(TYPES.get(name, EVERY)) for name in BINARY},
    **{name: call(WIDE, axis=AXES, keepdims=BOTH) for name in ("max", "min", "all", "any")},
    **{name: call(WIDE, axis=AXES, keepdims=BOTH, **NEW) for name in ("sum", "prod")},
    "floor_divide": either_way(EVERY, is_finite=True),  # of infinities, NumPy has Python's results
    "mean": call(FLOAT, keepdims=BOTH),
    **{
        name: call(FLOAT, keepdims=BOTH, correction=st.sampled_from([0, 1, 0.5]))
        for name in ("std", "var")
    },
    "count_nonzero": call(WIDE, axis=AXES, keepdims=BOTH),
    **{name: call(X, axis=AXIS, keepdims=BOTH) for name in ("argmax", "argmin")},
    **{
        name: call(of(is_finite=True), axis=AXIS, include_initial=BOTH, **NEW)
        for name in ("cumulative_sum", "cumulative_prod")
    },
    **{name: call(X, axis=PLACE, descending=BOTH, stable=BOTH) for name in ("sort", "argsort")},
    **{name: call(X) for name in ("unique_all", "unique_counts", "unique_inverse")},
    **{name: call(X) for name in ("unique_values", "nonzero")},
    "diff": call(X, axis=PLACE, n=st.integers(0, 3), prepend=X, append=X),
    "searchsorted": call(
        of(shapes=[(3,)]).map(np.sort),
        X,
        side=st.sampled_from(["left", "right"]),
        sorter=st.just(np.arange(3)),
    ),
    "isin": either_way(["int8", "int16", "int64", "uint8"]),
    "where": spread(
        st.tuples(of(BOOL), X | SCALAR, X | SCALAR)
        | THREE.map(lambda arrays: (arrays[0] != 0, *arrays[1:]))
    ),
    "clip": spread(
        THREE
        | st.builds(
            lambda arrays, scalar, place: [*arrays[:place], scalar, *arrays[place + 1 :]],
            *(THREE, st.sampled_from([None, 0, 3, 2.5]), st.integers(1, 2)),
        )
    ),
    "take": call(X, of(INTEGERS, [(0,), (2,), ()], True).map(lambda a: a % 2), axis=AXIS),
    "take_along_axis": call(X, INDEX, axis=PLACE),
    "expand_dims": call(X, axis=PLACE | SEVERAL),
    "flip": call(X, axis=AXES),
    "roll": call(X, st.integers(-5, 5) | SEVERAL, axis=AXES),
    "squeeze": call(of(shapes=SHAPES.filter(len)), PLACE | SEVERAL),
    "permute_dims": call(X, st.permutations([0, 1, 2]).map(tuple) | SEVERAL),
    "moveaxis": call(X, PLACE, PLACE) | call(X, SEVERAL, SEVERAL),
    "reshape": call(
        *(X, st.lists(st.integers(-1, 4), max_size=3).map(tuple)), copy=st.none() | BOTH
    ),
    "tile": call(X, st.lists(st.integers(0, 3), max_size=4).map(tuple)),
    "repeat": call(
        X, st.integers(0, 3) | of(INTEGERS, [(1,), (2,), (3,)]).map(lambda a: a % 4), axis=AXIS
    ),
    "unstack": call(X, axis=PLACE),
    "concat": call(LIST | LIST.map(tuple), axis=AXIS),
    "stack": call(LIST, axis=PLACE),
    "broadcast_arrays": spread(LIST),
    "meshgrid": spread(
        st.lists(of(shapes=[(2,), (0,), (3,)]), max_size=3), indexing=st.sampled_from(["xy", "ij"])
    ),
    "broadcast_to": call(X, SHAPES),
    **{name: call(X, k=st.integers(-4, 4)) for name in ("tril", "triu")},
    "astype": call(X, DTYPE, copy=BOTH),
    **{name: call(X, **NEW) for name in ("zeros_like", "ones_like")},
    # NumPy leaves out imaginary parts here, which the standard leaves undefined.
    "full_like": call(X, SCALAR.filter(lambda value: type(value) is not complex), **NEW)
    | call(of([each for each in EVERY if "complex" in each]), SCALAR),
    **{name: call(EXTENT, **NEW) for name in ("zeros", "ones")},
    "full": call(EXTENT, SCALAR, **NEW),
    "eye": call(st.integers(0, 4), st.none() | st.integers(0, 4), k=st.integers(-5, 5), **NEW),
    "arange": call(NUMBER, stop=st.none() | NUMBER, step=NUMBER.filter(bool), **NEW),
    "linspace": call(*(NUMBER | SCALAR, NUMBER | SCALAR, st.integers(0, 6)), endpoint=BOTH, **NEW),
    **{name: spread(FACTORS) for name in ("matmul", "linalg.matmul")},
    **{f"{prefix}vecdot": spread(FACTORS, axis=PLACE) for prefix in ("", "linalg.")},
    **{
        f"{prefix}tensordot": spread(
            FACTORS,
            axes=st.sampled_from([0, 1, ((0,), (0,)), ((1,), (0,)), ((0, 1), (1, 0)), ((), ())]),
        )
        for prefix in ("", "linalg.")
    },
    **{f"{prefix}matrix_transpose": call(of(shapes=MATRICES)) for prefix in ("", "linalg.")},
    "linalg.cholesky": call(POSITIVE, upper=BOTH),
    **{f"linalg.{name}": call(POSITIVE) for name in ("eig", "eigh", "eigvals", "eigvalsh", "inv")},
    **{f"linalg.{name}": call(SQUARE) for name in ("det", "slogdet")},
    "linalg.svd": call(MATRIX, full_matrices=BOTH),
    "linalg.svdvals": call(MATRIX),
    "linalg.qr": call(MATRIX, mode=st.sampled_from(["reduced", "complete"])),
    **{f"linalg.{name}": call(MATRIX, rtol=RTOL) for name in ("pinv", "matrix_rank")},
    "linalg.matrix_norm": call(
        MATRIX, keepdims=BOTH, ord=st.sampled_from([-math.inf, -2, -1, 1, 2, "fro", "nuc"])
    ),
    "linalg.vector_norm": call(
        FLOAT, axis=AXES, keepdims=BOTH, ord=st.sampled_from([2, 1, 0, -1, math.inf, 2.5])
    ),
    "linalg.matrix_power": call(POSITIVE, st.integers(-3, 4)),
    "linalg.diagonal": call(of(shapes=MATRICES), offset=st.integers(-9, 9)),
    "linalg.trace": call(of(shapes=MATRICES), offset=st.integers(-9, 9), **NEW),
    "linalg.outer": spread(two_of(FLOATS, [((2,), (3,)), ((0,), (1,))])),
    "linalg.cross": spread(two_of(FLOATS, [((3,), (3,)), ((2, 3), (3,)), ((1, 3), (2, 3))])),
    "linalg.solve": st.builds(
        lambda x, columns: ((x, np.ones((x.shape[-1], columns), x.dtype)), {}),
        *(POSITIVE, st.integers(0, 2)),
    ),
    **{
        f"fft.{name}": call(WAVE, n=st.none() | st.integers(1, 6), axis=PLACE, norm=NORM)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        f"fft.{name}": call(WAVE, axes=SIDES, norm=NORM)
        | st.tuples(st.tuples(WAVE), st.just({"s": (3,), "axes": (0,)}))
        for name in ("fftn", "ifftn", "rfftn", "irfftn")
    },
    **{
        f"fft.{name}": call(st.integers(1, 7), d=st.sampled_from([1.0, 0.5, 2]), **NEW)
        for name in ("fftfreq", "rfftfreq")
    },
    **{f"fft.{name}": call(WAVE, axes=SIDES | PLACE) for name in ("fftshift", "ifftshift")},
    "can_cast": call(X | DTYPE, DTYPE),
    "result_type": spread(st.lists(X | DTYPE | SCALAR, min_size=1, max_size=4)),
    "isdtype": call(
        DTYPE,
        st.lists(
            DTYPE | st.sampled_from(["bool", "integral", "real floating", "numeric"]), max_size=2
        ).map(tuple),
    ),
    "asarray": call(X, copy=st.sampled_from([None, True]))
    | call(st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3), max_leaves=6), **NEW),
    "from_dlpack": call(X, copy=st.none() | BOTH),
}
ARITHMETIC = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow"]
BITS = [*BOOL, *INTEGERS]
METHODS = {
    **{name: either_way(EVERY) for name in (*ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne")},
    **{name: either_way(BITS) for name in ("and_", "or_", "xor", "lshift", "rshift")},
    **{f"i{name}": spread(two_of() | st.tuples(X, SCALAR)) for name in ARITHMETIC},
    "floordiv": either_way(EVERY, is_finite=True),
    "ifloordiv": spread(two_of(is_finite=True)),
    **{
        f"i{name}": spread(two_of(BITS) | st.tuples(of(BITS), SCALAR))
        for name in ("and", "or", "xor", "lshift", "rshift")
    },
    **{name: call(X) for name in ("neg", "pos", "abs", "invert")},
    "matmul": spread(FACTORS),
    "index": call(of(INTEGERS, [()])),
}


def converted(value: Any, library: Any) -> Any:
    """An argument with arrays and types of a library."""
    if isinstance(value, np.ndarray):
        return library.asarray(value.copy())
    if isinstance(value, np.dtype):
        return getattr(library, value.name)
    if isinstance(value, list | tuple):
        return type(value)(converted(each, library) for each in value)
    return value


def check_same(ours: Any, theirs: Any, tolerance: float) -> None:
    if isinstance(theirs, list | tuple):
        assert isinstance(ours, tuple if isinstance(theirs, tuple) else list)
        assert getattr(ours, "_fields", None) == getattr(theirs, "_fields", None)
        for one, other in zip(ours, theirs, strict=True):
            check_same(one, other, tolerance)
    elif isinstance(theirs, StrictType):
        assert ours == np.dtype(str(theirs).rpartition(".")[2])
    elif isinstance(theirs, StrictArray):
        expected = np.asarray(theirs)
        assert type(ours) is Tensor
        assert type(ours.array) is np.ndarray
        assert (ours.shape, ours.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(ours.array, expected, rtol=tolerance, atol=tolerance)
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def check_agreement(
    calls: Any, ours: Callable[..., Any], theirs: Callable[..., Any], tolerance: float
) -> None:
    @settings(
        max_examples=settings.default.max_examples // 10,
        suppress_health_check=[HealthCheck.filter_too_much],
    )
    @given(calls)
    def agree(call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            # Complex numbers as real ones are refused here, where NumPy warns.
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            args, kwargs = converted(call[0], strict), call[1]
            try:
                expected = theirs(
                    *args, **{name: converted(each, strict) for name, each in kwargs.items()}
                )
            except Exception:
                reject()
            args = converted(call[0], xp)
            found = ours(*args, **{name: converted(each, xp) for name, each in kwargs.items()})
        check_same(found, expected, tolerance)

    with strict.ArrayAPIStrictFlags(api_version=xp.__array_api_version__):
        agree()


def find(library: Any, name: str) -> Any:
    extension, _, rest = name.rpartition(".")
    return getattr(getattr(library, extension) if extension else library, rest)


def test_every_function_is_called():
    named = {".".join(function.path) for function in FUNCTIONS} - {"empty", "empty_like"}
    assert named <= set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_functions_agree(name: str):
    # Libraries for vectors and matrices go by where the elements are in memory, and products of
    # complex numbers are rounded by which of them are multiplied at once.
    is_sum = "." in name or name in ("matmul", "tensordot", "vecdot", "cumulative_prod")
    check_agreement(CALLS[name], find(xp, name), find(strict, name), 1e-4 if is_sum else 0)


@pytest.mark.parametrize("name", METHODS)
def test_operators_agree(name: str):
    # NumPy multiplies complex numbers in place with another rounding.
    operate = getattr(operator, name)
    check_agreement(METHODS[name], operate, operate, 1e-4 if name in ("imul", "matmul") else 0)
