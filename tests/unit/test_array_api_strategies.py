"""Hypothesis's strategies for namespaces of the standard, drawn for ``opdispatch.array_api``."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

from opdispatch import Tensor
from opdispatch import array_api as xp
from opdispatch.array_api.data_types import DTYPES

DRAWN = make_strategies_namespace(xp)
SHAPES = DRAWN.array_shapes(min_dims=0, min_side=0, max_dims=3, max_side=4)
INTEGERS = [dtype for dtype in DTYPES.values() if dtype.kind in "iu"]


def arrays(dtype: Any, shape: Any = SHAPES) -> st.SearchStrategy[Tensor]:
    drawn: st.SearchStrategy[Tensor] = DRAWN.arrays(dtype, shape)
    return drawn


@pytest.mark.parametrize("version", ["2022.12", "2024.12", "2025.12"])
def test_tensors_are_drawn_for_every_revision(version: str):
    drawn = make_strategies_namespace(xp, api_version=version)

    @settings(max_examples=15)
    @given(drawn.scalar_dtypes() | drawn.complex_dtypes(), SHAPES, st.booleans(), st.data())
    def draw(dtype: Any, shape: tuple[int, ...], is_unique: bool, data: st.DataObject):
        if is_unique and dtype == xp.bool:
            shape = shape[:0]
        x = data.draw(drawn.arrays(dtype, shape, unique=is_unique))
        assert type(x) is Tensor
        assert (x.dtype, x.shape, x.device) == (dtype, shape, "cpu")

    draw()


@settings(max_examples=60)
@given(st.sampled_from([*DTYPES.values()]), SHAPES, st.data())
def test_drawn_indices_are_valid(dtype: Any, shape: tuple[int, ...], data: st.DataObject):
    x = data.draw(arrays(dtype, shape))
    index = data.draw(DRAWN.indices(shape, allow_newaxis=True))
    part = x[index]
    assert (type(part), part.dtype) == (Tensor, dtype)
    np.testing.assert_array_equal(part, x.array[index])
    value = data.draw(DRAWN.from_dtype(dtype) | arrays(dtype, part.shape))
    expected = x.array.copy()
    expected[index] = value.array if isinstance(value, Tensor) else value
    x[index] = value
    np.testing.assert_array_equal(x, expected)


@settings(max_examples=40)
@given(st.sampled_from(INTEGERS), st.data())
def test_tensors_are_bounds_of_slices(dtype: Any, data: st.DataObject):
    """As in a loop over counts."""
    counts = data.draw(
        DRAWN.arrays(dtype, st.tuples(st.integers(0, 4)), elements=st.integers(0, 3))
    )
    x = xp.repeat(xp.arange(counts.size), counts)
    start: Any = 0
    for number, count in enumerate(counts):
        end = start + count
        assert x[start:end].array.tolist() == [number] * int(count)
        start = end


# The kinds of types that the standard has each function for.
BESIDE_A_NUMBER = {
    **dict.fromkeys(["add", "multiply", "pow", "subtract"], "iufc"),
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], "biu"),
    **dict.fromkeys(["bitwise_left_shift", "bitwise_right_shift"], "iu"),
    **dict.fromkeys(["equal", "not_equal"], "biufc"),
    **dict.fromkeys(["floor_divide", "remainder", "maximum", "minimum"], "iuf"),
    **dict.fromkeys(["greater", "greater_equal", "less", "less_equal"], "iuf"),
    **dict.fromkeys(["atan2", "copysign", "hypot", "logaddexp", "nextafter"], "f"),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], "b"),
    "divide": "fc",
}
OF_KIND = {"b": bool, "i": int, "u": int, "f": float, "c": complex}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BESIDE_A_NUMBER)
def test_a_number_stands_for_an_array_of_the_other_ones_type(name: str):
    function = getattr(xp, name)
    dtypes = [each for each in DTYPES.values() if each.kind in BESIDE_A_NUMBER[name]]

    @settings(max_examples=12)
    @given(st.sampled_from(dtypes), st.integers(1, 3), st.data())
    def calculate(dtype: Any, number: int, data: st.DataObject):
        elements = st.integers(1, 7).map(OF_KIND[dtype.kind])
        x = data.draw(DRAWN.arrays(dtype, SHAPES, elements=elements))
        numbers: list[Any] = [OF_KIND[dtype.kind](number)]
        if dtype.kind in "fc":
            numbers.append(number)  # integers, too
        for each in numbers:
            as_array = xp.asarray(each, dtype=dtype)
            for found, expected in (
                (function(x, each), function(x, as_array)),
                (function(each, x), function(as_array, x)),
            ):
                assert (type(found), found.dtype) == (Tensor, expected.dtype)
                np.testing.assert_array_equal(found, expected)

    calculate()


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        *(("capabilities", "()"), ("default_device", "()"), ("devices", "()")),
        *(("default_dtypes", "(*, device=None)"), ("dtypes", "(*, device=None, kind=None)")),
    ],
)
def test_inspection_has_the_standards_signatures(name: str, signature: str):
    found = inspect.signature(getattr(xp.__array_namespace_info__(), name))
    parameters = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    without = found.replace(parameters=parameters, return_annotation=found.empty)
    assert str(without) == signature
