"""``opdispatch.array_api``: limits of types, what they are cast to, and their common ones."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opdispatch import ArgumentError, MetaArray, Tensor
from opdispatch import array_api as xp
from opdispatch.array_api.data_types import DTYPES

FLOATS = [xp.float32, xp.float64, xp.complex64, xp.complex128]
INTEGERS = [dtype for dtype in DTYPES.values() if dtype.kind in "iu"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_limits_of_floating_point_types_are_numbers_of_pythons(dtype: Any):
    real = np.finfo(dtype).dtype
    for asked in (dtype, xp.ones(1, dtype=dtype), np.ones(1, dtype)):
        info = xp.finfo(asked)
        assert (info.bits, info.dtype) == (8 * real.itemsize, real)
        for name in ("eps", "max", "min", "smallest_normal"):
            assert type(getattr(info, name)) is float
            assert getattr(info, name) == getattr(np.finfo(real), name)
    assert isinstance(info.dtype, np.dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_iinfo_agrees_with_numpy(dtype: Any):
    for asked in (dtype, xp.ones(1, dtype=dtype)):
        info = xp.iinfo(asked)
        assert (type(info.min), type(info.max), type(info.bits)) == (int, int, int)
        assert (info.min, info.max) == (np.iinfo(dtype).min, np.iinfo(dtype).max)
        assert info.dtype == dtype


def test_limits_of_more_types():
    assert xp.finfo(ml_dtypes.bfloat16).eps == 0.0078125
    for ask, dtype in ((xp.finfo, xp.int8), (xp.iinfo, xp.float32), (xp.iinfo, xp.bool)):
        with pytest.raises(ArgumentError, match=f"requires an? .*dtype, not {dtype}"):
            ask(dtype)


@pytest.mark.parametrize(("one", "other"), [*itertools.product(DTYPES.values(), repeat=2)])
def test_can_cast_agrees_with_promotion(one: Any, other: Any):
    x = xp.ones(1, dtype=one)
    try:
        is_other = xp.maximum(x, xp.ones(1, dtype=other)).dtype == other
    except ArgumentError:
        is_other = False
    assert xp.can_cast(one, other) is xp.can_cast(x, other) is is_other


@pytest.mark.parametrize("order", [*itertools.permutations(["uint64", "uint8", "int8"])])
def test_a_common_type_does_not_depend_on_the_order(order: tuple[str, ...]):
    with pytest.raises(ArgumentError, match="has no common type"):
        xp.result_type(*(getattr(xp, name) for name in order))
    named = {name: getattr(xp, "int8" if name == "uint64" else name) for name in order}
    assert xp.result_type(*named.values(), 1) == xp.int16


def test_scalars_alone_have_no_common_type():
    with pytest.raises(ValueError, match="at least one array or type"):  # which SciPy catches
        xp.result_type(1, 2.0)


@pytest.mark.parametrize(("real", "full"), [("float32", "complex64"), ("float64", "complex128")])
def test_a_complex_scalar_makes_real_numbers_complex_of_their_precision(real: str, full: str):
    x, dtype = xp.ones(2, dtype=getattr(xp, real)), getattr(xp, full)
    for result in (x + 2j, 2j - x, x * 2j, xp.divide(2j, x)):
        assert result.dtype == dtype
    assert xp.result_type(x, 2j) == dtype
    assert xp.multiply(Tensor(MetaArray((2,), real)), 1j).dtype == dtype


def test_complex_numbers_are_not_cut_to_real_ones():
    z = xp.asarray([1 + 2j, 0j])
    for x in (z, xp.zeros(2, dtype=xp.complex64, device="meta")):
        with pytest.raises(ArgumentError, match="no imaginary parts"):
            xp.astype(x, xp.float64)
    assert xp.astype(z, xp.bool).array.tolist() == [True, False]
