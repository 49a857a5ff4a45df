"""Adapters of CuPy's functions for operators, over functions that do as little as CuPy's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_compat.numpy
import ml_dtypes
import numpy as np
import pytest

from opdispatch.errors import ArgumentError
from opdispatch.native.array.operators.cupy_functions import find_cupy_function
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.half_precision import in_float32_for_cupy

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FUNCTION_OF = {function.operator: function for function in FUNCTIONS}


def adapted(operator: str, found: Any) -> Any:
    """The operator's function in a namespace that has ``found`` for it."""
    *extension, name = FUNCTION_OF[operator].path
    namespace = SimpleNamespace(**{name: found})
    return find_cupy_function(
        SimpleNamespace(**{extension[0]: namespace}) if extension else namespace,
        FUNCTION_OF[operator],
    )


@pytest.mark.parametrize(
    ("of_systems", "of_sides"),
    [((3, 3), (2, 3, 1)), ((2, 3, 3), (3, 2)), ((4, 1, 3, 3), (2, 3, 1)), ((2, 3, 3), (2, 3, 1))],
)
def test_systems_are_solved_for_as_many_sides(of_systems: Any, of_sides: Any):
    def solve(x1: Any, x2: Any) -> Any:
        assert x1.shape[:-2] == x2.shape[:-2]
        return np.linalg.solve(x1, x2)

    random = np.random.default_rng(0)
    x1, x2 = random.normal(size=of_systems), random.normal(size=of_sides)
    np.testing.assert_allclose(adapted("linalg_solve", solve)(x1, x2), np.linalg.solve(x1, x2))


def test_a_vector_is_solved_for_as_it_is():
    given = []
    solve = adapted("linalg_solve", lambda *args: given.append(args))
    systems, side = np.ones((2, 3, 3)), np.ones(3)
    solve(systems, side)
    assert given == [(systems, side)]


def test_no_sides_have_no_solutions():
    solve = adapted("linalg_solve", lambda x1, x2: 1 // 0)
    found = solve(np.ones((2, 3, 3), np.float32), np.ones((3, 0)))
    assert (found.shape, found.dtype) == ((2, 3, 0), np.float64)


@pytest.mark.parametrize("operator", ["linalg_vector_norm", "linalg_matrix_norm.ord"])
def test_the_norm_of_nothing_is_zero(operator: str):
    if operator == "linalg_matrix_norm.ord" and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("NumPy's, which it is asked of, raises before 2.3")

    def norm(x: Any, **options: Any) -> Any:
        assert x.size
        return array_api_compat.numpy.linalg.vector_norm(x, **options)

    found = adapted(operator, norm)(np.empty((2, 0, 0), np.float32), keepdims=True, ord=1)
    assert found.dtype == np.float32
    assert not found.any()
    assert adapted("linalg_vector_norm", norm)(np.array([3.0, 4.0])) == 5.0


def test_places_are_searched_in_a_type_for_both():
    def searchsorted(x1: Any, x2: Any, *, side: str) -> Any:
        assert x1.dtype == x2.dtype
        return np.searchsorted(x1, x2, side=side)

    found = adapted("searchsorted", searchsorted)
    sides = np.array([0, 1], np.uint64)
    np.testing.assert_array_equal(found(np.array([-1, 0, 1], np.int8), sides, side="left"), [1, 2])


def test_axes_are_not_left_out():
    permute_dims = adapted("permute_dims", lambda x, axes: x.transpose(axes or None))
    with pytest.raises(ArgumentError, match=r"was given 0 axes for the shape \[2, 3\]"):
        permute_dims(np.zeros((2, 3)), ())
    assert permute_dims(np.zeros((2, 3)), (1, 0)).shape == (3, 2)


def test_a_number_is_summed_up_as_an_array_of_one():
    found = adapted("cumulative_sum", np.cumulative_sum)
    np.testing.assert_array_equal(found(np.array([1, 2])), [1, 3])
    taken = adapted("cumulative_sum", lambda x: x.shape)
    assert taken(np.array(1)) == (1,)


def test_a_number_is_a_grid_of_one_point():
    def meshgrid(*arrays: Any, indexing: str) -> Any:
        assert all(x.ndim == 1 for x in arrays)
        return np.meshgrid(*arrays, indexing=indexing)

    found = adapted("meshgrid", meshgrid)([np.array(1), np.array([2, 3])], indexing="ij")
    assert [x.shape for x in found] == [(1, 2), (1, 2)]


@pytest.mark.parametrize("operator", ["tensordot", "tensordot.dims"])
def test_a_number_is_multiplied(operator: str):
    tensordot = adapted(operator, lambda x1, x2, **options: 1 // 0)
    axes: Any = 0 if operator == "tensordot" else ((), ())
    np.testing.assert_array_equal(tensordot(np.array(2), np.array([3, 4]), axes=axes), [6, 8])
    with pytest.raises(ArgumentError, match="array::tensordot"):
        tensordot(np.array(2), np.array([3, 4]), axes=1 if axes == 0 else ((0,), (0,)))


# -- short floating-point numbers ------------------------------------------------------------------


def short(operator: str, call: Any) -> Any:
    found = in_float32_for_cupy(FUNCTION_OF[operator], call)
    assert found is not None
    return found


def test_bfloat16_goes_by_float32_and_comes_back():
    given = []

    def hypot(x1: Any, x2: Any) -> Any:
        given.append((x1.dtype, x2.dtype))
        return np.hypot(x1, x2)

    short("hypot.Tensor", hypot)(np.ones(2, BFLOAT16), np.ones(2, BFLOAT16))
    assert given == [(np.float32, np.float32)]
    assert (
        short("hypot.Tensor", hypot)(np.ones(2, BFLOAT16), np.ones(2, BFLOAT16)).dtype == BFLOAT16
    )
    assert (
        short("hypot.Tensor", hypot)(np.ones(2, BFLOAT16), np.ones(2, np.float32)).dtype
        == np.float32
    )
    assert short("hypot.Tensor", np.hypot)(np.ones(2, np.float16), np.ones(2)).dtype == np.float64


@pytest.mark.parametrize("operator", ["linalg_vector_norm", "linalg_matrix_norm"])
def test_norms_of_float16_are_those_of_float32_rounded(operator: str):
    asked = []

    def found(x: Any, **options: Any) -> Any:
        asked.append((x.dtype, options))
        return np.linalg.norm(x)

    result = adapted(operator, found)(np.full((3, 3), 0.5, np.float16), keepdims=False)
    assert (result.dtype, result) == (np.float16, 1.5)
    assert asked == [(np.float32, {"keepdims": False})]


@pytest.mark.parametrize("operator", ["sum", "prod"])
@pytest.mark.parametrize("dtype", [None, np.dtype(np.float16)])
def test_float16_is_added_up_in_float32(operator: str, dtype: Any):
    asked = []

    def found(x: Any, **options: Any) -> Any:
        asked.append(options["dtype"])
        return getattr(np, operator)(x, **options)

    call = adapted(operator, found)
    result = call(np.full((2, 3), 0.5, np.float16), axis=1, dtype=dtype)
    assert (result.dtype, result.shape, asked) == (np.float16, (2,), [np.float32])
    assert call(np.ones(2, np.float16), dtype=np.dtype(np.float64)).dtype == np.float64
    assert call(np.ones(2, np.float32), dtype=None).dtype == np.float32
    assert asked[1:] == [np.float64, None]


def test_the_condition_of_where_does_not_count():
    condition, x = np.array([True, False]), np.ones(2, BFLOAT16)
    assert short("where.ScalarOther", np.where)(condition, x, 2.0).dtype == BFLOAT16


def test_a_sum_has_the_dtype_that_is_asked_for():
    x = np.ones(301, BFLOAT16)  # one after the other, no more than 256 in bfloat16
    assert short("sum", np.add.reduce)(x).astype(int) == 300  # 301, rounded once
    assert short("sum", np.add.reduce)(x, dtype=np.float64) == 301
    assert short("fft_rfft", np.fft.rfft)(x).dtype == np.complex64


def test_bfloat16_is_sorted_as_float32():
    x = np.array([3, 1, 3], BFLOAT16)
    values, counts = short("unique_counts", lambda x: np.unique(x, return_counts=True))(x)
    assert (values.dtype, values.tolist(), counts.tolist()) == (BFLOAT16, [1, 3], [1, 2])
    assert counts.dtype == np.intp
    assert short("sort", np.sort)(x).dtype == BFLOAT16
    assert short("argsort", np.argsort)(x).tolist() == [1, 0, 2]
    assert short("isin.Scalar", np.isin)(x, 1.0, invert=True).tolist() == [True, False, True]


def test_nextafter_of_bfloat16_raises_on_a_gpu():
    nextafter = short("nextafter.Tensor", np.nextafter)
    with pytest.raises(ArgumentError, match="array::nextafter has no bfloat16 on a GPU"):
        nextafter(np.ones(2, BFLOAT16), np.ones(2, BFLOAT16))
    assert nextafter(np.ones(2, np.float32), np.ones(2, np.float32)).dtype == np.float32


def test_others_are_cupys_own():
    assert in_float32_for_cupy(FUNCTION_OF["matmul"], np.matmul) is None
    assert in_float32_for_cupy(FUNCTION_OF["add.Tensor"], np.add) is None
