import pickle

import pytest
from hypothesis import given, settings

from opdispatch.schema.parser import parse_schema
from opdispatch.schema.types import (
    ANY,
    BASIC_TYPES,
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    LAYOUT,
    NONE,
    SCALAR,
    SCALAR_TYPE,
    STR,
    SYM_BOOL,
    SYM_INT,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    TupleType,
    TypeVariable,
    UnionType,
    WrapperType,
    optional_of,
    union_of,
)
from tests.unit.schema_strategies import types


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (TENSOR, "Tensor"),
        (NONE, "NoneType"),
        (ListType(INT), "int[]"),
        (ListType(INT, 2), "int[2]"),
        (OptionalType(ListType(OptionalType(TENSOR))), "Tensor?[]?"),
        (TupleType((INT, ListType(STR))), "(int, str[])"),
        (TupleType(()), "()"),
        (DictType(STR, TypeVariable("t")), "Dict(str, t)"),
        (WrapperType("Future", TENSOR), "Future(Tensor)"),
        (UnionType((INT, STR)), "Union(int, str)"),
        (UnionType((TENSOR, FLOAT, COMPLEX, INT)), "Union(Tensor, Scalar)"),
    ],
)
def test_a_type_prints_as_it_is_written(type_, text):
    assert str(type_) == text


def test_only_tensors_and_flat_lists_of_them_dispatch():
    dispatching = [
        TENSOR,
        OptionalType(TENSOR),
        ListType(TENSOR),
        ListType(TENSOR, 2),
        ListType(OptionalType(TENSOR)),
    ]
    others = [
        INT,
        OptionalType(ListType(TENSOR)),
        ListType(ListType(TENSOR)),
        TupleType((TENSOR,)),
        DictType(STR, TENSOR),
        WrapperType("Future", TENSOR),
        UnionType((TENSOR, INT)),
        TypeVariable("t"),
        ANY,
    ]
    assert all(type_.dispatches for type_ in dispatching)
    assert not any(type_.dispatches for type_ in others)


def test_inside_containers_numbers_with_names_are_plain_ints():
    assert SCALAR_TYPE.plain is INT
    assert SYM_INT.plain is INT
    assert OptionalType(ListType(LAYOUT, 2)).plain == OptionalType(ListType(INT))
    assert SYM_BOOL.plain is SYM_BOOL
    assert TENSOR.plain is TENSOR


@settings(deadline=None)
@given(types)
def test_plain_types_are_plain(type_):
    assert type_.plain.plain == type_.plain


@settings(deadline=None)
@given(types)
def test_types_are_values(type_):
    copy = pickle.loads(pickle.dumps(type_))
    assert copy == type_
    assert hash(copy) == hash(type_)
    assert parse_schema(f"f({type_} x) -> ()").arguments[0].type == type_


def test_a_basic_type_is_one_object_however_it_is_named():
    assert parse_schema("f(Tensor x) -> Tensor").arguments[0].type is TENSOR
    assert BASIC_TYPES["None"] is BASIC_TYPES["NoneType"] is NONE
    assert BASIC_TYPES["DeviceIndex"] is INT


def test_optionals_do_not_nest():
    assert optional_of(OptionalType(INT)) == OptionalType(INT)
    assert optional_of(UnionType((INT, STR))) == OptionalType(UnionType((INT, STR)))
    assert optional_of(UnionType((INT, NONE, STR))) == OptionalType(UnionType((INT, STR)))
    assert optional_of(UnionType((FLOAT, COMPLEX, INT))) == OptionalType(SCALAR)
    with pytest.raises(ValueError, match="NoneType"):
        optional_of(NONE)


def test_unions_are_flat_sorted_and_without_duplicates():
    assert union_of((STR, INT)) == union_of((INT, STR, INT)) == UnionType((INT, STR))
    assert union_of((OptionalType(INT), STR)) == UnionType((INT, NONE, STR))
    assert union_of((INT, NONE)) == OptionalType(INT)
    assert union_of((INT, FLOAT, COMPLEX, NONE)) == OptionalType(SCALAR)
    assert union_of((SCALAR, BOOL)) == UnionType((FLOAT, COMPLEX, INT, BOOL))
    assert union_of((ANY, INT, NONE)) == OptionalType(ANY)


@pytest.mark.parametrize("members", [(), (INT,), (INT, INT), (ANY, INT), (NONE,)])
def test_a_union_of_one_type_is_refused(members):
    with pytest.raises(ValueError, match="two different types"):
        union_of(members)
