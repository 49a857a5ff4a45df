import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch.errors import RegistrationError, SchemaError
from opdispatch.schema.function_schema import AliasInfo, OperatorName
from opdispatch.schema.lexer import Lexer
from opdispatch.schema.operator_name import find_plain_name, read_operator_name
from opdispatch.schema.parser import MAX_LIST_SIZE, parse_schema
from opdispatch.schema.type_parser import MAX_NESTING
from opdispatch.schema.types import INT, TENSOR, ListType, OptionalType, TypeVariable
from tests.unit.schema_strategies import names, schemas
from tests.work_done import check_linear_work


def test_a_schema_has_all_its_parts():
    schema = parse_schema(
        "image::blur.out(Tensor x, int[2] size=3, *, float? sigma=None, Tensor(a!) out)"
        " -> Tensor(a!)"
    )
    assert schema.name == OperatorName("image::blur", "out")
    x, size, sigma, out = schema.arguments
    assert (x.name, x.type, x.kwarg_only) == ("x", TENSOR, False)
    assert (size.type, size.default) == (ListType(INT, 2), (3, 3))
    assert sigma.default is None
    assert sigma.kwarg_only
    assert out.alias_info == AliasInfo(frozenset("a"), frozenset("a"), is_write=True)
    assert schema.returns[0].alias_info == out.alias_info
    assert not schema.is_vararg
    assert not schema.is_varret


@pytest.mark.parametrize(
    ("argument", "default"),
    [
        ("int x=0x10", 0),
        ("float x=0x10", 16.0),
        ("float x=1", 1.0),
        ("int x=1e3", 1000.0),
        ("int x=1E3", 1),
        ("Scalar x=-2.5e-1", -0.25),
        ("Scalar x=2j", 2j),
        ("complex x=15", 1j),
        ("bool[2] x=True", (True, True)),
        ("int[0] x=None", ()),
        ("str x='a\\tb\\101'", "a\tbA"),
        ('str x="""a"b"""', 'a"b'),
        ("str x='\\303\\251'", "é"),
        ("Device x='cuda:1'", "cuda:1"),
        ("ScalarType x=float", np.dtype("float32")),
        ("ScalarType? x=bfloat16", "bfloat16"),
        ("ScalarType x=12", 12),
        ("ScalarType x='int8'", np.dtype("int8")),
        ("ScalarType[] x=[6, 12]", (np.dtype("float32"), 12)),
        ("Layout x=strided", "strided"),
        ("Layout? x=2", "sparse_csr"),
        ("Layout x=99", 99),
        ("MemoryFormat? x=contiguous_format", "contiguous_format"),
        ("int x=Mean", 1),
        ("int x=long", 4),
    ],
)
def test_defaults_are_what_kernels_get(argument, default):
    found = parse_schema(f"f({argument}) -> ()").arguments[0].default
    assert found == default
    if not isinstance(found, np.dtype):
        assert type(found) is type(default)


@pytest.mark.parametrize(
    ("text", "column", "expected", "found"),
    [
        ("f(Tensor x -> Tensor", 12, "',' or ')'", "'->'"),
        ("f(Tensor x)", 12, "'->' and the types of the returns", "the end"),
        ("f", 2, "'(' and the arguments", "the end"),
        ("", 1, "the operator's name", "the end"),
        ("f(Tensorr x) -> ()", 3, "perhaps 'Tensor'", "'Tensorr'"),
        ("f(Int x) -> ()", 3, "perhaps 'int'", "'Int'"),
        ("f(string x) -> ()", 3, "perhaps 'str'", "'string'"),
        ("f(int) -> ()", 6, "the argument's name", "')'"),
        ("f(int if) -> ()", 7, "'if' is a reserved word", "'if'"),
        ("f(int x=) -> ()", 9, "a default value", "')'"),
        ("f(int x=foo) -> ()", 9, "a number, True, False, None or a quoted string", "'foo'"),
        ("f(Tensor x=1) -> ()", 12, "None, the only default", "'1'"),
        ("f(Any x=1) -> ()", 9, "no default, which an argument of type Any", "'1'"),
        ("f(Device x='gpu') -> ()", 12, "a device such as 'cpu'", "'gpu'"),
        ("f(int[2] x=1.5) -> ()", 12, "a list of int", "'1.5'"),
        ("f(int[] x=1) -> ()", 11, "a list in square brackets", "'1'"),
        ("f(str[] x=['a']) -> ()", 11, "no default: a list of str", "'['"),
        ("f(int x=9223372036854775808) -> ()", 9, "an integer of 64 bits", "'922337203685477"),
        ("f(float x=1e999) -> ()", 11, "within the range of a double", "'1e999'"),
        ("f(str x='\\x41') -> ()", 9, "one of the escapes", "'\\x41'"),
        ("f(str x='\\377') -> ()", 9, "a string that is UTF-8", "'\\377'"),
        ("f(int x=1, int y) -> ()", 12, "a default, since an argument before", "'int'"),
        ("f(int x=1, ...) -> ()", 3, "no defaults in a schema with '...'", "'int'"),
        ("f(..., int x) -> ()", 8, "no argument behind '...'", "'int'"),
        ("f() -> (..., int)", 14, "no return behind '...'", "'int'"),
        ("f.default() -> ()", 3, "an overload name other than 'default'", "'default'"),
        ("f(Tensor(a b) x) -> ()", 12, "')' after the alias annotation", "'b'"),
        ("f(Tensor() x) -> ()", 10, "an alias set, such as 'a'", "')'"),
        ("f(Dict(t, int) x) -> ()", 8, "keys of a Dict to be int, float", "'t'"),
        ("f(Dict(int) x) -> ()", 11, "',' and the type of the values", "')'"),
        ("f(Union(int) x) -> ()", 3, "a Union of at least two different types", "'Union'"),
        ("f(None? x) -> ()", 7, "NoneType? is not a type", "'?'"),
        ("f(int[x] y) -> ()", 7, "the size of the list, or ']'", "'x'"),
        ("f(__torch__.a.b x) -> ()", 13, "'torch', as in __torch__.torch.classes", "'a'"),
        ("f() -> é", 8, "a type such as", "'é'"),
        ("f(str x='a", 9, "a default value", "'''"),
    ],
)
def test_an_error_says_where_and_what_was_expected(text, column, expected, found):
    with pytest.raises(SchemaError) as caught:
        parse_schema(text, allow_typevars="string" not in text)
    error = caught.value
    assert error.facts["column"] == str(column)
    first, shown, caret = error.message.split("\n")
    assert f"at column {column}: expected " in first
    assert expected in first
    assert f"found {found}" in first
    assert shown == f"    {text}"
    assert caret == " " * (4 + column - 1) + "^"
    assert isinstance(error, RegistrationError)
    assert isinstance(error, ValueError)


def test_an_error_in_a_text_of_several_lines_shows_the_line():
    with pytest.raises(
        SchemaError, match="line 3, column 5: expected the argument's name"
    ) as caught:
        parse_schema("f(\n\tint x,\n int,\n) -> ()")
    assert caught.value.message.endswith("\n     int,\n        ^")


def test_an_error_in_a_long_line_shows_the_part_around_it():
    many = ", ".join(f"Tensor x{i}" for i in range(1000))
    with pytest.raises(SchemaError) as caught:
        parse_schema(f"f({many}, Oops y) -> ()")
    _, shown, caret = caught.value.message.split("\n")
    assert len(shown) < 200
    assert shown[caret.index("^") :].startswith("Oops y")


def test_type_variables_are_refused_where_operators_are_defined():
    assert parse_schema("f(t x) -> t").arguments[0].type == TypeVariable("t")
    assert parse_schema("aten::f(t x) -> t", allow_typevars=False).returns[0].type == TypeVariable(
        "t"
    )
    with pytest.raises(SchemaError, match="column 3"):
        parse_schema("f(t x) -> t", allow_typevars=False)
    with pytest.raises(SchemaError, match="perhaps 'float'"):
        parse_schema("n::f(double x) -> t", allow_typevars=False)


def test_blanks_lines_and_comments_do_not_matter():
    text = """
        f(          # an operator
            Tensor  x,
            int y = 1
        ) \\
        -> (
            Tensor
        )  # and that is all
    """
    assert parse_schema(text) == parse_schema("f(Tensor x, int y=1) -> Tensor")


def test_sizes_of_lists_are_limited():
    argument = parse_schema(f"f(int[{MAX_LIST_SIZE}] x=0) -> ()").arguments[0]
    assert len(argument.default) == MAX_LIST_SIZE
    for size in (MAX_LIST_SIZE + 1, 2**31, 10**30, "9" * 10_000):
        with pytest.raises(SchemaError, match="column 7"):
            parse_schema(f"f(int[{size}] x=0) -> ()")


def test_the_depth_of_types_is_limited():
    deepest = "(" * MAX_NESTING + "int" + ")" * MAX_NESTING
    assert str(parse_schema(f"f({deepest} x) -> ()")) == f"f({deepest} x) -> ()"
    assert parse_schema(f"f(int{'[]' * MAX_NESTING} x) -> ()")
    for text in (f"({deepest})", "(" * 100_000, "int" + "[]" * (MAX_NESTING + 1), f"{deepest}[]"):
        with pytest.raises(SchemaError, match=f"nested at most {MAX_NESTING} deep"):
            parse_schema(f"f({text} x) -> ()")


@pytest.mark.parametrize(
    ("quote", "rest"), [('"', '\\"'), ("'''", "\\'"), ('"', "\\"), ("'", "'\\")]
)
@pytest.mark.parametrize("before", ["f(str x=", "f(", ""])
def test_quotes_that_nothing_closes_are_refused_in_one_pass(before: str, quote: str, rest: str):
    def parse(length: int) -> None:
        with pytest.raises(SchemaError):
            parse_schema(before + quote + rest * length)

    check_linear_work(parse, lambda size: size, 50_000)


def test_optionals_of_optionals_are_no_depth():
    schema = parse_schema(f"f(int{'?' * MAX_NESTING} x) -> ()")
    assert schema.arguments[0].type == OptionalType(INT)


@settings(deadline=None, max_examples=100)
@given(schemas())
def test_a_printed_schema_reads_back_as_itself(schema):
    assert parse_schema(str(schema)) == schema
    assert str(parse_schema(str(schema))) == str(schema)


@settings(deadline=None)
@given(names)
def test_a_printed_name_reads_back_as_itself(name):
    assert OperatorName.parse(str(name)) == name


@settings(deadline=None, max_examples=300)
@given(st.text() | st.text("f(Tensorint x)->[]?!*|,.=\"'\\\n#019ej:"))
def test_any_text_is_a_schema_or_an_error(text):
    try:
        schema = parse_schema(text)
    except SchemaError:
        return
    assert parse_schema(str(schema)) == schema


def test_schemas_that_differ_in_the_name_share_their_signature():
    one, other = (parse_schema(f"t::{name}(Tensor x, int n=1) -> Tensor") for name in ("f", "g.h"))
    assert one.arguments is other.arguments
    assert (str(one.name), str(other.name)) == ("t::f", "t::g.h")


@pytest.mark.parametrize("name", ["f", "t::f", "t::f.g", "_f", "f1.g_2"])
def test_a_plain_name_is_what_the_lexer_reads(name):
    assert find_plain_name(name) == read_operator_name(Lexer(name))


@pytest.mark.parametrize(
    "name", ["", "f.", "::f", "t::", "f.default", "f.__g", "None", "t::f.None"]
)
def test_plain_name_is_none_for_text_that_lexer_refuses(name):
    assert find_plain_name(name) is None


@pytest.mark.parametrize("name", [" f", "f # a comment\n", "t :: f", "f . g", "fé"])
def test_a_name_with_blanks_or_other_letters_is_left_to_the_lexer(name):
    assert find_plain_name(name) is None
