import dataclasses

import numpy as np
import pytest

from opdispatch.errors import SchemaError
from opdispatch.schema.function_schema import (
    NO_DEFAULT,
    AliasInfo,
    Argument,
    FunctionSchema,
    OperatorName,
)
from opdispatch.schema.parser import parse_schema
from opdispatch.schema.types import FLOAT, INT, SCALAR_TYPE, STR, TENSOR, ListType


def test_an_operator_name_has_parts():
    name = OperatorName.parse("image::sobel.out")
    assert name == OperatorName("image::sobel", "out")
    assert name.namespace == "image"
    assert name.unqualified_name == "sobel"
    assert str(name) == "image::sobel.out"


def test_a_name_without_namespace_and_overload_has_empty_ones():
    name = OperatorName.parse("sobel")
    assert (name.namespace, name.unqualified_name, name.overload_name) == ("", "sobel", "")
    assert str(name) == "sobel"


@pytest.mark.parametrize(
    ("text", "where", "expected"),
    [
        ("", "column 1", "the operator's name"),
        ("a::", "column 4", "a name behind the namespace"),
        ("a::b::c", "column 5", "the end of the operator's name"),
        ("a::b.default", "column 6", "an overload name other than 'default'"),
        ("a::b.__class__", "column 6", "an overload name other than 'default'"),
        ("a::b(", "column 5", "the end of the operator's name"),
        ("a::import", "column 4", "'import' is a reserved word"),
    ],
)
def test_malformed_operator_name_raises_schema_error(text, where, expected):
    with pytest.raises(SchemaError, match=where) as caught:
        OperatorName.parse(text)
    assert expected in str(caught.value)


def test_schemas_are_frozen_values():
    schema = parse_schema("f(Tensor x, int[2] s=1) -> Tensor")
    assert schema == parse_schema("f( Tensor x,int[2] s=[1,1] )->Tensor")
    assert hash(schema) == hash(parse_schema(str(schema)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.is_vararg = True


def test_arguments_know_whether_they_are_written_to():
    schema = parse_schema("f(Tensor(a!) x, Tensor(b) y, Tensor z, *, Tensor(c!)[] out) -> ()")
    assert [a.is_write for a in schema.arguments] == [True, False, False, True]
    assert [a.is_out for a in schema.arguments] == [False, False, False, True]
    assert schema.is_mutable
    assert not parse_schema("f(Tensor(a) x) -> Tensor(a)").is_mutable


def test_the_dispatching_arguments_are_the_ones_with_tensors():
    schema = parse_schema("f(int n, Tensor a, Tensor?[] b, Tensor[]? c, Tensor? d) -> ()")
    assert schema.dispatching_arguments == (1, 2, 4)
    assert [a.dispatches for a in schema.arguments] == [False, True, True, False, True]


def test_no_default_is_not_the_default_none():
    without, with_none = parse_schema("f(Tensor? x, *, Tensor? y=None) -> ()").arguments
    assert without.default is NO_DEFAULT
    assert not without.has_default
    assert with_none.default is None
    assert with_none.has_default
    assert repr(NO_DEFAULT) == "NO_DEFAULT"


def test_a_schema_moves_into_a_namespace_once():
    schema = parse_schema("f.a(Tensor x) -> ()")
    assert str(schema.with_namespace("n")) == "n::f.a(Tensor x) -> ()"
    assert schema.with_namespace("n").with_namespace("m").name.namespace == "n"
    assert schema.with_name(OperatorName("m::g")).name == OperatorName("m::g")


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ("(Tensor x) -> Tensor", "(Tensor y) -> Tensor z", None),
        ("(Tensor x) -> Tensor", "(Tensor(a!) x=None) -> Tensor(a!)", None),
        ("(int x, ...) -> ...", "(*, int x) -> ()", None),
        ("(int[2] x) -> ()", "(int[] x) -> ()", None),
        ("(SymInt[]? x) -> ()", "(int[3]? x) -> ()", None),
        ("(Tensor x) -> ()", "() -> ()", "the number of arguments differs: 1 and 0"),
        ("() -> ()", "() -> (int, int)", "the number of returns differs: 0 and 2"),
        (
            "(int a, int x) -> ()",
            "(int a, float y) -> ()",
            "the type of argument 2 (x) differs: int and float",
        ),
        ("() -> Tensor", "() -> Tensor[]", "the type of return 1 differs: Tensor and Tensor[]"),
        (
            "(ScalarType x) -> ()",
            "(int x) -> ()",
            "the type of argument 1 (x) differs: ScalarType and int",
        ),
    ],
)
def test_differences_are_in_counts_and_types_alone(one, other, difference):
    assert parse_schema(f"f{one}").find_differences(parse_schema(f"g{other}")) == difference


@pytest.mark.parametrize(
    ("alias", "text"),
    [
        (AliasInfo(frozenset("a"), frozenset("a")), "(a)"),
        (AliasInfo(frozenset("ba"), frozenset("c"), is_write=True), "(a|b! -> c)"),
        (AliasInfo(frozenset("*a"), frozenset("*")), "(a|* -> *)"),
        (AliasInfo(frozenset({"$3"}), frozenset(), is_write=True), "!"),
        (AliasInfo(is_write=True), ""),
    ],
)
def test_alias_annotations_print_in_order(alias, text):
    assert str(alias) == text


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        (Argument("x", TENSOR), "Tensor x"),
        (Argument("", TENSOR), "Tensor"),
        (Argument("x", FLOAT, 1e-5), "float x=1.0000000000000001e-05"),
        (Argument("x", FLOAT, 2.0), "float x=2."),
        (Argument("x", FLOAT, -(2.0**63)), "float x=-9223372036854775808."),
        (Argument("x", FLOAT, 2.0**63), "float x=9.2233720368547758e+18"),
        (Argument("x", STR, 'a"\n\x01é'), r'str x="a\"\n\001\303\251"'),
        (Argument("x", INT, "abc"), 'int x="abc"'),
        (Argument("x", INT, -2j), "int x=-2.j"),
        (Argument("x", SCALAR_TYPE, np.dtype("float32")), "ScalarType x=6"),
        (Argument("x", ListType(INT, 3), (1, 1, 1)), "int[3] x=1"),
        (Argument("x", ListType(INT), (1, 1, 1)), "int[] x=[1, 1, 1]"),
        (Argument("x", ListType(INT, 3), (1, 1)), "int[3] x=[1, 1]"),
        (Argument("x", ListType(FLOAT, 2), (1.0, 1.0)), "float[2] x=[1., 1.]"),
    ],
)
def test_arguments_print_with_their_defaults(argument, text):
    assert str(argument) == text


@pytest.mark.parametrize(
    "text",
    [
        "f() -> ()",
        "n::f.o(Tensor x, *, int y=1) -> (Tensor, int n)",
        "f(...) -> ...",
        "f(int x, ...) -> (int, ...)",
        "f() -> ((int, str)[])",
        "f() -> ((int, str))",
        "f(Tensor(a! -> b|*)?[](c) x) -> Tensor(a)[]",
        "f(Tensor! x, Tensor![] y) -> Tensor!",
        "f(Union((int, str), NoneType)(a) x) -> ()",
    ],
)
def test_a_canonical_text_is_printed_as_it_was_read(text):
    assert str(parse_schema(text)) == text


def test_a_schema_can_be_made_without_the_parser():
    made = FunctionSchema(
        OperatorName("n::f"), (Argument("x", TENSOR),), (Argument("", ListType(TENSOR)),)
    )
    assert made == parse_schema("n::f(Tensor x) -> Tensor[]")
