"""Arguments of `opdispatch call`, and how its results are shown."""

from __future__ import annotations

import json
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import parse_schema
from opdispatch_client.cli.convert_by_schema import read_arguments, read_value
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.literal_words import parse_text
from opdispatch_client.cli.parse_literals import build_tensor, parse_literal
from opdispatch_client.cli.results import (
    describe_returns,
    list_arrays,
    list_returns,
    value_to_json,
)
from opdispatch_client.cli.split_arguments import is_negative_number, split_keywords


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("none", None),
        ("null", None),
        ("5", 5),
        ("-3", -3),
        ("+7", 7),
        ("2.5", 2.5),
        (".5", 0.5),
        ("-1e-3", -0.001),
        ("inf", math.inf),
        ("1+2j", 1 + 2j),
        ("-2j", -2j),
        ("[1, 2]", [1, 2]),
        ('{"a": [true, null]}', {"a": [True, None]}),
        ('"5"', "5"),
        ('"a=b"', "a=b"),
        ("word", "word"),
        ("1_000", "1_000"),
        ("1.2.3", "1.2.3"),
        ("5px", "5px"),
        ("-", "-"),
        ("e5", "e5"),
        ("1+2", "1+2"),
        ("", ""),
        ("dtype:float32", np.dtype("float32")),
    ],
)
def test_a_literal_has_the_type_that_its_text_shows(text, value):
    parsed = parse_literal(text)
    assert (parsed, type(parsed)) == (value, type(value))


def test_nan_is_a_float():
    assert math.isnan(parse_literal("nan"))


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none())
def test_parse_literal_reads_repr(value):
    parsed = parse_literal(repr(value))
    assert (parsed, type(parsed)) == (value, type(value))


@given(st.complex_numbers(allow_nan=False, allow_infinity=False))
def test_complex_numbers_read_back(value):
    assert parse_literal(repr(value).strip("()")) == value


@given(st.text())
def test_any_text_can_be_quoted(text):
    assert parse_literal(json.dumps(text)) == text
    assert parse_text(json.dumps(text)) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2", "JSON"),
        ('"open', "JSON"),
        ("9" * 5000, "is an integer of more digits"),
        (f"[{'9' * 5000}]", "has an integer of more digits"),
        (f"tensor:{'9' * 5000}", "is an integer of more digits"),
        ("[" * 33 + "]" * 33, "limit is 32 levels"),
        ("[" * 900 + "]" * 900, "limit is 32 levels"),
        ("[" * 100_000, "limit is 32 levels"),
        ('{"a":' * 500 + "1" + "}" * 500, "limit is 32 levels"),
        (f"tensor:{'[' * 70}{']' * 70}", "limit is 32 levels"),
        ("{a: 1}", "JSON"),
        ("tensor:[[1], [2, 3]]", "equal length"),
        ('tensor:["a"]', "is not a tensor"),
        ("tensor:[null]", "numbers or booleans"),
        ("tensor:uint8:[256]", "uint8 cannot hold"),
        ("tensor:int32:[1.5]", "int32 cannot hold"),
        ('tensor:float32:["1+2j"]', "complex"),
        ("tensor:float31:[1]", "float31"),
        ("dtype:str", "dtype"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_unreadable_literal_is_a_usage_error(text, problem):
    with pytest.raises(UsageError, match=problem):
        parse_literal(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tensor:[[1, 2], [3, 4]]", np.array([[1, 2], [3, 4]])),
        ("array:[1.5]", np.array([1.5])),
        ("tensor:3", np.array(3)),
        ("tensor:float32:[1, 2]", np.array([1, 2], np.float32)),
        ("tensor:uint8:[255]", np.array([255], np.uint8)),
        ("tensor:bfloat16:[1.5]", np.array([1.5], ml_dtypes.bfloat16)),
        ("tensor:bool:[0, 1]", np.array([False, True])),
        ('tensor:complex64:["1+2j", "3"]', np.array([1 + 2j, 3], np.complex64)),
        ("tensor:[]", np.array([])),
    ],
)
def test_tensors_have_the_dtype_that_is_asked_for(text, expected):
    tensor = parse_literal(text)
    np.testing.assert_array_equal(tensor, expected)
    assert tensor.dtype == expected.dtype


def test_a_number_beyond_every_dtype_is_no_tensor():
    with pytest.raises(UsageError):
        build_tensor([2**70])


def test_names_are_distinguished_from_values():
    assert split_keywords(["1", "scale=2", "a=b=c", '"x=1"', "=3", "5=6"]) == (
        ["1", '"x=1"', "=3", "5=6"],
        {"scale": "2", "a": "b=c"},
    )
    with pytest.raises(UsageError, match="twice"):
        split_keywords(["a=1", "a=2"])


@pytest.mark.parametrize("text", ["-3", "-.5", "-1e5", "-inf", "-2j", "-0x"])
def test_a_minus_and_a_digit_make_a_number(text):
    assert is_negative_number(text)


@pytest.mark.parametrize("text", ["-o", "--json", "-", "3", "-e5", "--3"])
def test_options_are_no_numbers(text):
    assert not is_negative_number(text)


def _read(schema_text, *texts):
    """The arguments as the schema reads them."""
    return read_arguments(texts, [parse_schema(schema_text)])


def test_a_text_argument_takes_the_text_as_it_is():
    read = _read("t::f(str a, str? b, str c, Device d) -> ()", "5", "none", '"q=1"', "cuda:0")
    assert read.args == ["5", None, "q=1", "cuda:0"]
    assert _read("t::f(str a) -> ()", '"@home"').args == ["@home"]  # no file
    assert _read("t::f(str a) -> ()", "none").args == ["none"]


def test_numbers_and_lists_become_tensors_where_the_schema_wants_one():
    read = _read(
        "t::f(Tensor a, Tensor? b, Tensor(c!) c, int[] d) -> ()", "1", "none", "[2]", "[3]"
    )
    assert isinstance(read.args[0], np.ndarray)
    assert read.args[0].shape == ()
    assert read.args[1] is None
    np.testing.assert_array_equal(read.args[2], [2])
    assert read.args[3] == [3]


def test_tensor_lists_take_lists_of_lists_and_of_files(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    texts = json.dumps([[1, 2], f"@{tmp_path / 'a.npy'}"])
    [arrays] = _read("t::f(Tensor[] a) -> ()", texts).args
    assert [array.tolist() for array in arrays] == [[1, 2], [0, 1, 2]]
    [optional] = _read("t::f(Tensor?[] a) -> ()", "[null, [1]]").args
    assert optional[0] is None
    assert optional[1].tolist() == [1]


def test_floats_dtypes_and_dicts_follow_the_schema():
    read = _read(
        "t::f(float a, ScalarType b, Scalar c, *, Dict(str, Tensor) d, float[] e) -> ()",
        "3",
        "float16",
        "3",
        'd={"x": [1]}',
        "e=[1, 2]",
    )
    assert read.args == [3.0, np.dtype("float16"), 3]
    assert [type(value) for value in read.args] == [float, np.dtype("float16").__class__, int]
    assert read.kwargs["d"]["x"].tolist() == [1]
    assert [type(value) for value in read.kwargs["e"]] == [float, float]


def test_arguments_that_do_not_fit_the_schema_are_left_to_the_daemon():
    assert _read("t::f(int a) -> ()", "word", "2", "b=[1]").args == ["word", 2]
    assert _read("t::f(Tensor a) -> ()", "word").args == ["word"]


def test_the_error_names_the_argument():
    with pytest.raises(UsageError, match=r"argument 2: .*JSON"):
        _read("t::f(int a, int b) -> ()", "1", "[")
    with pytest.raises(UsageError, match=r"argument b: there is no file 'missing\.npy'"):
        _read("t::f(int a, Tensor b) -> ()", "1", "b=@missing.npy")


_OVERLOADS = [
    "t::add(Tensor a, Tensor b) -> Tensor",
    "t::add.Scalar(Scalar a, Scalar b) -> Scalar",
    "t::add.text(str a, str b) -> str",
]


@pytest.mark.parametrize(
    ("texts", "overload"),
    [
        (["1", "2"], "Scalar"),
        (["[1]", "[2]"], ""),
        (["tensor:[1]", "2"], ""),
        (["x", "y"], "text"),
        (["a=1", "b=2"], "Scalar"),
        (["true", "y"], "text"),
    ],
)
def test_the_overload_that_takes_the_arguments_is_chosen(texts, overload):
    read = read_arguments(texts, [parse_schema(text) for text in _OVERLOADS])
    assert read.schema is not None
    assert read.schema.name.overload_name == overload


def test_without_an_overload_that_fits_the_daemon_decides():
    read = read_arguments(["1", "2", "3"], [parse_schema(text) for text in _OVERLOADS])
    assert (read.schema, read.args) == (None, [1, 2, 3])
    assert read_value("[1]", None) == [1]


def test_returns_are_called_as_the_schema_calls_them():
    named = parse_schema("t::f() -> (Tensor q, Tensor r)")
    assert list_returns((1, 2), named) == [("q", 1), ("r", 2)]
    assert list_returns((1, 2), None) == [("out0", 1), ("out1", 2)]
    assert list_returns(None, parse_schema("t::f() -> ()")) == []
    assert list_returns(None, parse_schema("t::f() -> Tensor?")) == [("out0", None)]
    assert list_returns([1, 2], parse_schema("t::f() -> int[]")) == [("out0", [1, 2])]


def test_the_tensors_of_a_list_have_names_of_their_own():
    arrays = list_arrays([("a", np.zeros(1)), ("b", [np.ones(1), 3, np.ones(2)])])
    assert list(arrays) == ["a", "b_0", "b_2"]


def test_tensors_are_shown_with_dtype_and_shape():
    text = describe_returns([("out0", np.ones((2, 2), np.float32))])
    assert text == ["float32 [2, 2]", "[[1., 1.],", " [1., 1.]]"]
    two = describe_returns([("q", 3), ("r", np.zeros(100_000))])
    assert two[:2] == ["q: 3", "r: float64 [100000]"]
    assert len(two) < 6
    assert describe_returns([("q", 3), ("r", np.zeros(1))], tensors=False) == ["q: 3"]


def test_tensors_of_a_dict_are_described_and_written_by_their_keys():
    returns = [("y", np.ones(1)), ("grads", {"w": np.zeros(2), "b": np.ones(1)})]
    assert describe_returns(returns) == [
        "y: float64 [1]",
        "[1.]",
        "grads['w']: float64 [2]",
        "[0., 0.]",
        "grads['b']: float64 [1]",
        "[1.]",
    ]
    assert list(list_arrays(returns)) == ["y", "grads_w", "grads_b"]
    assert describe_returns([("n", {"mean": 1.5})]) == ["{'mean': 1.5}"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (True, True),
        (None, None),
        ("text", "text"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (1 + 2j, {"real": 1.0, "imaginary": 2.0}),
        (np.dtype("int8"), "int8"),
        ([1, {"a": 2}], [1, {"a": 2}]),
        (np.array([[1, 2]]), {"dtype": "int64", "shape": [1, 2], "data": [[1, 2]]}),
        (np.array(1.5), {"dtype": "float64", "shape": [], "data": 1.5}),
        (np.array([math.inf]), {"dtype": "float64", "shape": [1], "data": ["Infinity"]}),
        (np.array([1j]), {"dtype": "complex128", "shape": [1], "data": [[0.0, 1.0]]}),
        (np.array([True]), {"dtype": "bool", "shape": [1], "data": [True]}),
        (
            np.array([1.5], ml_dtypes.bfloat16),
            {"dtype": "bfloat16", "shape": [1], "data": [1.5]},
        ),
    ],
)
def test_every_value_has_strict_json(value, expected):
    document = value_to_json(value)
    assert document == expected
    json.dumps(document, allow_nan=False)
