"""NumPy's slow loops: what others of its loops do has the same result."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from opdispatch import array_api as xp
from opdispatch.native.array.operators import numpy_loops
from opdispatch.native.array.operators.numpy_loops import FEW, reduce, where

UFUNCS = [np.add, np.multiply, np.maximum, np.minimum]
RNG = np.random.default_rng(0)
PAIRS = RNG.normal(size=(8, 3, 4, 2, 5, 2))
ARRAYS: dict[str, Any] = {
    "pairs": PAIRS,
    "of floats": PAIRS.astype(np.float32),
    "of integers": RNG.integers(-3, 4, PAIRS.shape),
    "transposed": PAIRS.transpose(5, 0, 4, 1, 2, 3),
    "with NaN and both zeros": np.where(PAIRS > 1, np.nan, np.where(PAIRS < 0, -0.0, 0.0)),
    "all short": RNG.normal(size=(8, 8, 8)),
    "with an axis of one": RNG.normal(size=(400, 1, 2)),
    "of small integers": RNG.integers(0, 100, PAIRS.shape, np.int8),
    "of booleans": PAIRS > 0,
    "big-endian": PAIRS.astype(">f8"),
    "of halves": PAIRS.astype(np.float16),
    "without elements": np.empty((600, 0, 2)),
}
AXES: list[Any] = [None, (), (0,), (-1,), (3, 5), (5, 3), (1, 2), (0, 1, 2), (-1, 5), (9,), (-9,)]


def _outcome(function: Any, *args: Any) -> Any:
    try:
        result = function(*args)
    except Exception as error:
        return (type(error), str(error)), None
    strides = [  # of an axis of one element, any will do
        each for n, each in zip(result.shape, result.strides, strict=True) if n > 1
    ]
    return (type(result), result.dtype, result.shape, strides), result


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("name", ARRAYS)
def test_reduction_along_any_axes_equals_numpys(name: str, ufunc: np.ufunc):
    x = ARRAYS[name]
    dtypes = [None, x.dtype, np.dtype(np.float64)]
    for axis, dtype, keepdims in itertools.product(AXES, dtypes, (False, True)):
        facts, got = _outcome(reduce, ufunc, x, axis, dtype, keepdims)
        numpys, wanted = _outcome(ufunc.reduce, x, axis, dtype, None, keepdims)
        assert facts == numpys, (axis, dtype, keepdims)
        if wanted is not None:
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_short_axes_are_combined_without_a_reduction():
    class Refusing:
        """``np.maximum`` that reduces nothing."""

        def __call__(self, *args: Any) -> Any:
            return np.maximum(*args)

    np.testing.assert_array_equal(
        reduce(Refusing(), PAIRS, (3, 5), None, False), PAIRS.max(axis=(3, 5))
    )


NUMBERS = RNG.normal(size=(40, 50))
NUMBERS[::7] = np.inf
NUMBERS[1::7] = np.nan
NUMBERS[2::7] = -0.0


@pytest.mark.parametrize("other", [0.0, -0.0, 1.5, np.nan])
@pytest.mark.parametrize(
    "x",
    [
        NUMBERS,
        NUMBERS.astype(np.float32),
        NUMBERS.astype(np.float16),
        NUMBERS.astype(">f8"),
        NUMBERS.T[::-1],
        NUMBERS[:, :1],
        NUMBERS.astype(complex),
        np.ma.masked_array(NUMBERS, NUMBERS > 0),
    ],
    ids=["doubles", "floats", "halves", "big-endian", "strided", "a column", "complex", "masked"],
)
def test_selection_equals_numpys_to_the_bit(x: Any, other: float):
    for condition in (
        *(RNG.random(x.shape) > 0.5, np.ones((40, 50), bool).reshape(x.shape[0], -1)),
        *(RNG.random(x.shape[1]) > 0.5, np.array(False), RNG.integers(0, 3, x.shape)),
    ):
        got, wanted = where(condition, x, other), np.where(condition, x, other)
        assert (type(got), got.dtype, got.shape) == (type(wanted), wanted.dtype, wanted.shape)
        assert got.tobytes() == wanted.tobytes()


def test_operators_of_many_elements_take_these_loops(monkeypatch: pytest.MonkeyPatch):
    small, large = np.ones(FEW - 1), np.ones(FEW)
    entered: list[str] = []
    monkeypatch.setattr(numpy_loops.math, "copysign", lambda *_: entered.append("where") or 1.0)
    for x in (small, large):
        xp.where(xp.asarray(x > 0), xp.asarray(x), 0.0)
    assert entered == ["where"]
