import collections
import enum
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch.boxing.argument_conversion import converter_of
from opdispatch.errors import DataDependentOutputError
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.parser import parse_schema
from opdispatch.schema.types import BASIC_TYPES, INT, ListType, SchemaType
from opdispatch.tensors.tensor import Tensor
from tests.unit.schema_strategies import types


def type_of(text: str) -> SchemaType:
    schema: FunctionSchema = parse_schema(f"f({text} x) -> ()")
    return schema.arguments[0].type


class Index:
    def __index__(self):
        return 7


class Half:
    def __float__(self):
        return 0.5


class Unknown:
    def __float__(self):
        raise ValueError("not yet known")


class Colour(enum.Enum):
    RED = 1


ARRAY = np.ones(2)
TENSOR = Tensor(ARRAY)
GENERATOR = np.random.default_rng(0)
NAN = float("nan")

ACCEPTED = [
    ("int", 5, 5),
    ("int", True, 1),
    ("int", Index(), 7),
    ("int", np.int8(3), 3),
    ("int", np.uint64(2**63 - 1), 2**63 - 1),
    ("int", np.array(3), 3),
    ("int", np.bool_(True), 1),
    ("int", ml_dtypes.int4(3), 3),
    ("int", -(2**63), -(2**63)),
    ("int", Tensor(np.array([[3]])), 3),
    ("int", Tensor(np.array([True])), 1),
    ("int", np.array([1]), 1),
    ("SymInt", np.int64(3), 3),
    ("SymInt", Tensor(np.array(3)), 3),
    ("DeviceIndex", 1, 1),
    ("float", 1.5, 1.5),
    ("float", 1, 1.0),
    ("float", True, 1.0),
    ("float", 10**30, 1e30),
    ("float", np.float32(1.5), 1.5),
    ("float", np.int64(2), 2.0),
    ("float", np.longdouble(1.5), 1.5),
    ("float", ml_dtypes.bfloat16(1.5), 1.5),
    ("float", np.array(1.5), 1.5),
    ("float", Tensor(np.array(1.5)), 1.5),
    ("float", Tensor(np.array([[3]])), 3.0),
    ("float", Tensor(np.array([1.5])).requires_grad_(), 1.5),
    ("float", Tensor(np.array(1.5, ml_dtypes.bfloat16)), 1.5),
    ("float", Index(), 7.0),
    ("float", Half(), 0.5),
    ("float", Fraction(1, 4), 0.25),
    ("float", Decimal("1.5"), 1.5),
    ("float", np.array([1.5]), 1.5),
    ("complex", 2, 2 + 0j),
    ("complex", Fraction(1, 4), 0.25 + 0j),
    ("complex", Tensor(np.array([1j])), 1j),
    ("complex", 1.5, 1.5 + 0j),
    ("complex", np.complex64(1j), 1j),
    ("complex", np.clongdouble(1j), 1j),
    ("bool", False, False),
    ("bool", np.bool_(True), True),
    ("bool", np.array(True), True),
    ("bool", Tensor(np.array([True])), True),
    ("bool", 1, True),
    ("bool", 0, False),
    ("bool", 2, True),
    ("bool", np.int8(1), True),
    ("bool", Tensor(np.array([0])), False),
    ("SymBool", True, True),
    ("str", "abc", "abc"),
    ("str", np.str_("abc"), "abc"),
    ("Scalar", 1, 1),
    ("Scalar", 2**64 - 1, 2**64 - 1),
    ("Scalar", True, True),
    ("Scalar", 1.5, 1.5),
    ("Scalar", 1j, 1j),
    ("Scalar", np.float32(1.5), 1.5),
    ("Scalar", np.uint8(3), 3),
    ("Scalar", np.bool_(False), False),
    ("ScalarType", np.dtype("int8"), np.dtype("int8")),
    ("ScalarType", np.float32, np.dtype("float32")),
    ("ScalarType", "uint16", np.dtype("uint16")),
    ("ScalarType", np.dtype(">f4"), np.dtype("float32")),
    ("ScalarType", "bfloat16", np.dtype(ml_dtypes.bfloat16)),
    ("ScalarType", ml_dtypes.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2)),
    ("ScalarType", float, np.dtype("float64")),
    ("ScalarType", bool, np.dtype("bool")),
    ("ScalarType", 6, np.dtype("float32")),
    ("Device", "cpu", "cpu"),
    ("Device", "cuda:1", "cuda:1"),
    ("Layout", "sparse_csr", "sparse_csr"),
    ("MemoryFormat", "channels_last", "channels_last"),
    ("QScheme", "per_tensor_affine", "per_tensor_affine"),
    ("Generator", GENERATOR, GENERATOR),
    ("NoneType", None, None),
    ("Any", ARRAY, ARRAY),
    ("t", "x", "x"),
    ("AnyEnumType", Colour.RED, Colour.RED),
    ("Tensor", ARRAY, ARRAY),
    ("Tensor", TENSOR, TENSOR),
    ("Tensor?", None, None),
    ("Tensor?", ARRAY, ARRAY),
    ("int?", None, None),
    ("int?", np.int8(1), 1),
    ("int[]", [1, True, np.int8(3)], [1, 1, 3]),
    ("int[]", (1, 2), [1, 2]),
    ("int[]", [], []),
    ("int[]", range(3), [0, 1, 2]),
    ("int[]", collections.deque([1, 2]), [1, 2]),
    ("int[]", collections.UserList([1, 2]), [1, 2]),
    ("int[]?", range(2), [0, 1]),
    ("bool[]", [1, 0], [True, False]),
    ("str[]", collections.deque(["a"]), ["a"]),
    ("Tensor[]", collections.deque([ARRAY, TENSOR]), [ARRAY, TENSOR]),
    ("Tensor?[]", collections.UserList([ARRAY, None]), [ARRAY, None]),
    ("int[2]", Tensor(np.array(3)), [3, 3]),
    ("float[]", [Tensor(np.array(1.5)), 2], [1.5, 2.0]),
    ("int[2]", 3, [3, 3]),
    ("int[2]", [1, 2, 3], [1, 2, 3]),
    ("int[2]?", 3, [3, 3]),
    ("int[2]?", None, None),
    ("float[3]", 1, [1.0, 1.0, 1.0]),
    ("bool[2]", True, [True, True]),
    ("Tensor[]", [ARRAY, TENSOR], [ARRAY, TENSOR]),
    ("Tensor?[]", (ARRAY, None), [ARRAY, None]),
    ("int[][]", [[1], (2,)], [[1], [2]]),
    ("str[]", ["a"], ["a"]),
    ("(int, str)", [True, "a"], (1, "a")),
    ("(int, Tensor?)", (1, None), (1, None)),
    ("Dict(str, int)", {"a": True}, {"a": 1}),
    ("Dict(int, Tensor[])", {1: (ARRAY,)}, {1: [ARRAY]}),
    ("Union(int, float, str)", 1, 1),
    ("Union(int, float, str)", 1.0, 1.0),
    ("Union(int, float, str)", np.float32(1.5), 1.5),
    ("Union(Tensor, int)", ARRAY, ARRAY),
]


@pytest.mark.parametrize(("text", "value", "expected"), ACCEPTED)
def test_values_that_fit_are_converted(text, value, expected):
    found = converter_of(type_of(text))(value)
    if expected is value and not isinstance(value, list | tuple | str):
        assert found is value
    else:
        assert found == expected
        assert type(found) is type(expected)
        if isinstance(expected, list | tuple):
            assert [type(item) for item in found] == [type(item) for item in expected]


REFUSED = [
    ("int", "abc", "expected int, got str 'abc'"),
    ("int", 1.0, "expected int, got float 1.0"),
    ("int", np.float32(2.0), "expected int, got numpy.float32"),
    ("int", np.array([[2.0]]), "expected int, got numpy.ndarray"),
    ("int", Tensor(np.array(1.0)), "expected int, got opdispatch.Tensor"),
    ("int", np.float64(1), "expected int, got numpy.float64"),
    ("int", Tensor(np.array([1, 2])), "expected int, got opdispatch.Tensor"),
    ("int", Fraction(2), "expected int, got fractions.Fraction"),
    ("int", None, "expected int, got None"),
    ("int", np.array(1.5), "expected int, got numpy.ndarray"),
    ("int", np.array([[1.5]]), "expected int, got numpy.ndarray"),
    ("int", Tensor(np.array(1.5)), "expected int, got opdispatch.Tensor"),
    ("int", np.array([np.nan]), "expected int, got numpy.ndarray"),
    ("int", 2**63, "expected int, got int 9223372036854775808, out of the 64-bit range"),
    ("float", "1", "expected float, got str '1'"),
    ("float", 1j, "expected float, got complex 1j"),
    ("float", 10**400, "out of the range of a double"),
    ("float", ARRAY, "expected float, got numpy.ndarray"),
    ("float", TENSOR, "expected float, got opdispatch.Tensor"),
    ("float", Tensor(np.array(1j)), "expected float, got opdispatch.Tensor"),
    ("float", Unknown(), "expected float, got tests.unit.test_argument_conversion.Unknown"),
    ("float", Fraction(10**400), "out of the range of a double"),
    ("complex", "1", "expected complex, got str '1'"),
    ("complex", 10**400, "out of the range of a double"),
    ("bool", None, "expected bool, got None"),
    ("bool", 1.0, "expected bool, got float 1.0"),
    ("bool", "true", "expected bool, got str 'true'"),
    ("complex", Unknown(), "expected complex, got tests.unit.test_argument_conversion.Unknown"),
    ("int[]", b"ab", "expected int[], got bytes b'ab'"),
    ("int[]", memoryview(b"ab"), "expected int[], got memoryview"),
    ("int[]", {1, 2}, "expected int[], got set"),
    ("str[]", "ab", "expected str[], got str 'ab'"),
    ("str", b"abc", "expected str, got bytes b'abc'"),
    ("str", None, "expected str, got None"),
    ("Scalar", "1", "expected Scalar, got str '1'"),
    ("Scalar", 2**64, "out of the 64-bit range"),
    ("Scalar", -(2**63) - 1, "out of the 64-bit range"),
    ("Scalar", ARRAY, "expected Scalar, got numpy.ndarray"),
    ("Scalar", Tensor(np.array(1.5)), "expected Scalar, got opdispatch.Tensor"),
    ("Scalar", np.datetime64("2020-01-01"), "expected Scalar, got numpy.datetime64"),
    ("Scalar", np.datetime64("2020-01-01", "ns"), "expected Scalar, got numpy.datetime64"),
    ("int", np.timedelta64(5, "ns"), "expected int, got numpy.timedelta64"),
    ("int", np.array([np.datetime64(5, "ns")]), "expected int, got numpy.ndarray"),
    ("float", np.timedelta64(5, "ns"), "expected float, got numpy.timedelta64"),
    ("bool", np.timedelta64(5, "ns"), "expected bool, got numpy.timedelta64"),
    ("complex", np.timedelta64(5, "ns"), "expected complex, got numpy.timedelta64"),
    ("ScalarType", "float33", "expected ScalarType (a numeric dtype or its name), got str"),
    ("ScalarType", np.dtype("O"), "expected ScalarType"),
    ("ScalarType", str, "expected ScalarType"),
    ("ScalarType", 12, "expected ScalarType"),
    ("ScalarType", None, "expected ScalarType"),
    ("Device", "gpu", "expected Device (such as 'cpu', 'cuda' or 'cuda:1'), got str 'gpu'"),
    ("Device", 0, "expected Device"),
    ("Layout", "round", "expected Layout (strided, "),
    ("MemoryFormat", 0, "expected MemoryFormat (contiguous_format, "),
    ("QScheme", "x", "expected QScheme (per_tensor_affine, "),
    (
        "Generator",
        None,
        "expected Generator (opdispatch.Generator or numpy.random.Generator), got None",
    ),
    ("Generator", object(), "expected Generator"),
    ("NoneType", 0, "expected None, got int 0"),
    ("AnyEnumType", 1, "expected AnyEnumType (a member of an enum), got int 1"),
    ("Tensor", None, "expected Tensor"),
    ("Tensor", [1.0], "expected Tensor"),
    ("Tensor", 1.0, "expected Tensor"),
    ("int?", "a", "expected int?, got str 'a'"),
    ("int[]", 1, "expected int[], got int 1"),
    ("int[]", np.array([1]), "expected int[], got numpy.ndarray"),
    ("int[]", None, "expected int[], got None"),
    ("int[]", [1, "a"], "expected int, got str 'a', at [1] of int[]"),
    ("int[2]", "a", "expected int[2], got str 'a'"),
    ("int[2]", None, "expected int[2], got None"),
    ("int[]?", [1.0], "expected int, got float 1.0, at [0] of int[]?"),
    ("int[][]", [[1], [2, None]], "expected int, got None, at [1] of int[], at [1] of int[][]"),
    ("Tensor[]", ARRAY, "expected Tensor[], got numpy.ndarray"),
    ("Tensor[2]", ARRAY, "expected Tensor[2], got numpy.ndarray"),
    ("(int, str)", (1,), "expected (int, str), got tuple of 1"),
    ("(int, str)", (1, 2), "expected str, got int 2, at [1] of (int, str)"),
    ("(int, str)", "ab", "expected (int, str), got str 'ab'"),
    ("Dict(str, int)", [("a", 1)], "expected Dict(str, int), got list"),
    ("Dict(str, int)", {"a": "b"}, "expected int, got str 'b', at ['a'] of Dict(str, int)"),
    ("Dict(str, int)", {1: 1}, "expected str, got int 1, at [1] of Dict(str, int)"),
    ("Union(int, str)", 1.5, "expected Union(int, str), got float 1.5"),
    ("Storage", 1, "expected Storage, a type that has no values here, got int 1"),
    ("Stream", None, "expected Stream, a type that has no values here"),
    ("Future(int)", 1, "expected Future(int), a type that has no values here"),
    (
        "__torch__.torch.classes.quantized.ConvPrepack",
        1,
        "expected __torch__.torch.classes.quantized.ConvPrepack, a type that has no values here",
    ),
    ("int", "x" * 100_000, f"expected int, got str '{'x' * 57}'..."),
]


@pytest.mark.parametrize(("text", "value", "message"), REFUSED)
def test_values_that_do_not_fit_are_refused(text, value, message):
    with pytest.raises(TypeError) as caught:
        converter_of(type_of(text))(value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


def test_an_integer_that_python_does_not_print_is_refused_too():
    with pytest.raises(
        TypeError, match="expected int, got an enormous int, out of the 64-bit range"
    ):
        converter_of(INT)(10**5000)


@pytest.mark.parametrize("text", ["int", "float", "complex", "bool", "float?", "int[2]"])
def test_a_tensor_without_elements_is_no_number_that_could_be_read(text):
    with pytest.raises(DataDependentOutputError, match="has no elements to read"):
        converter_of(type_of(text))(Tensor(np.array(1)).to("meta"))


@pytest.mark.parametrize(
    ("text", "items"), [("int[]", (1, 2)), ("Tensor[]", (ARRAY, TENSOR)), ("str[]", ("a", "b"))]
)
def test_a_list_is_always_a_new_one(text, items):
    convert = converter_of(type_of(text))
    for one in (list(items), tuple(items)):
        made = convert(one)
        assert type(made) is list
        assert made is not one
        assert all(one is another for one, another in zip(made, items, strict=True))


def test_a_list_of_tensors_has_nothing_else():
    class Picture(np.ndarray):
        pass

    convert = converter_of(type_of("Tensor[]"))
    picture = np.ones(1).view(Picture)
    assert convert([np.ones(1), picture])[1] is picture
    with pytest.raises(TypeError, match=r"got int, at \[1\] of Tensor\[\]"):
        convert([np.ones(1), 3])


def test_the_default_of_a_list_becomes_a_list_of_its_own_each_time():
    argument = parse_schema("f(int[2] x=3) -> ()").arguments[0]
    convert = converter_of(argument.type)
    assert convert(argument.default) == [3, 3]
    assert convert(argument.default) is not convert(argument.default)


def test_subclasses_of_containers_are_taken_as_what_they_are():
    pair = collections.namedtuple("pair", "a b")
    assert converter_of(type_of("int[]"))(pair(1, 2)) == [1, 2]
    assert converter_of(type_of("(int, int)"))(pair(1, 2)) == (1, 2)
    ordered = collections.OrderedDict(a=1)
    assert type(converter_of(type_of("Dict(str, int)"))(ordered)) is dict


def test_each_type_has_one_converter():
    assert converter_of(ListType(INT)) is converter_of(ListType(INT))


def test_every_type_of_the_language_has_a_converter():
    for type_ in BASIC_TYPES.values():
        assert callable(converter_of(type_))


def is_soon_over(value: object) -> bool:
    """Return whether it can be gone through: a range may have more elements than memory."""
    return not (isinstance(value, range) and value[1000:])


@settings(deadline=None)
@given(
    types,
    st.from_type(object).filter(is_soon_over)
    | st.none()
    | st.integers()
    | st.text()
    | st.lists(st.none()),
)
def test_a_converter_returns_or_raises_type_error(type_, value):
    convert = converter_of(type_)
    try:
        once = convert(value)
    except TypeError:
        return
    assert repr(convert(once)) == repr(once)
