"""Plain results, described with NumPy and without."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opdispatch_client.cli.plain_results import describe_plain, plain_to_json, plain_value
from opdispatch_client.cli.results import describe_returns, value_to_json
from opdispatch_wire.v1 import execution_pb2
from opdispatch_wire.values import fill_value

DTYPES = ["bool", "int8", "int64", "uint8", "uint64", "float32", "float64"]


def reply_of(*values: Any) -> execution_pb2.CallReply:
    reply = execution_pb2.CallReply()
    for value in values:
        fill_value(reply.returns.add(), value, at="$")
    return reply


def check(value: Any) -> tuple[bool, bool]:
    """Compare both descriptions; return whether there was a plain text, and plain JSON."""
    plain = plain_value(reply_of(value))
    if plain is None:
        assert not value.size
        return False, False
    lines, document = describe_plain(plain), plain_to_json(plain)
    assert lines is None or lines == describe_returns([("out0", value)])
    assert document is None or document == value_to_json(value)
    return lines is not None, document is not None


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
    if not dtype.startswith("float"):
        return draw(hnp.arrays(dtype, shape))
    width = int(dtype.removeprefix("float"))
    near = st.floats(0.0078125, 10, width=32).map(float) | st.integers(-9, 9).map(float)
    elements = draw(st.sampled_from([near, st.floats(width=width), near.map(lambda x: -x / 3)]))
    return draw(hnp.arrays(np.float64, shape, elements=elements)).astype(dtype)


@given(arrays())
def test_plain_tensors_are_described_as_numpy_does(array):
    check(array)


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, 2.5]),
        np.array([[1, -20], [300, 4]]),
        np.array([[[True], [False]]]),
        np.array(True),
        np.array(7.5, np.float32),
        np.array([0.1, 1 / 3], np.float32),
        np.array([0.1, -1 / 3, 0.0]),
        np.array([0.000123456789]),
        np.arange(24.0).reshape(2, 3, 4),
    ],
)
def test_usual_tensors_are_plain(value):
    assert check(value) == (True, True)


@pytest.mark.parametrize(
    ("value", "has_json"),
    [
        (np.array([1e9]), True),
        (np.array([1.0, 1e-5]), True),
        (np.array([math.nan]), False),
        (np.zeros(1001), True),
        (np.zeros(60), True),
    ],
)
def test_numpy_prints_tensors_with_exponents_or_long_rows(value, has_json):
    assert check(value) == (False, has_json)


@pytest.mark.parametrize("value", [True, 3, -1.5, 1e30, "a text\nof two lines"])
def test_numbers_and_texts_are_plain(value):
    assert check(value) == (True, True)


@pytest.mark.parametrize(
    "values",
    [
        *((), (1, 2), (1j,), ([1],), (None,)),
        *((np.zeros(size, dtype),) for size, dtype in ((1, "c8"), (2, "e"), (0, "d"))),
    ],
)
def test_other_results_are_not_plain(values):
    assert plain_value(reply_of(*values)) is None


def test_a_result_with_an_effect_on_arguments_is_not_plain():
    reply = reply_of(1)
    reply.mutations.add()
    assert plain_value(reply) is None
