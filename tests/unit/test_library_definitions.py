"""Operators that a library defines."""

import inspect

import pytest

from opdispatch import (
    DuplicateDefinitionError,
    RegistrationError,
    SchemaError,
    Tag,
    define,
)


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("f(Tensor x) -> Tensor", "f"),
        ("f.wide(Tensor x) -> Tensor", "f.wide"),
        ("t::f(Tensor x) -> Tensor", "f"),
        ("t::f.wide(Tensor x) -> Tensor", "f.wide"),
    ],
)
def test_define_returns_the_name_without_its_namespace(lib, dispatcher, schema, name):
    assert lib.define(schema) == name
    assert [str(n) for n in dispatcher.operators()] == [f"t::{name}"]


def test_an_operator_of_another_namespace_is_refused(lib, dispatcher):
    with pytest.raises(RegistrationError, match="cannot define u::f, of another namespace"):
        lib.define("u::f(Tensor x) -> Tensor")
    with pytest.raises(RegistrationError, match="cannot implement u::f, of another namespace"):
        lib.impl("u::f", lambda x: x)
    assert dispatcher.operators() == []


def test_a_definition_has_tags_and_a_place(lib, dispatcher):
    line = inspect.currentframe().f_lineno + 1
    lib.define("f(Tensor x) -> Tensor", tags=("pointwise", "core"))
    lib.define("g(Tensor x) -> Tensor", tags="core")
    f, g = (dispatcher.get_schema(name) for name in ("t::f", "t::g"))
    assert (f.tags, g.tags) == (["pointwise", "core"], ["core"])
    assert f.defined_at == f"{__file__}:{line}"


def test_a_second_definition_names_both_places(lib):
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(DuplicateDefinitionError) as caught:
        lib.define("f(Tensor x) -> Tensor")
    line = inspect.currentframe().f_lineno
    assert f"registered at {__file__}:{line - 3}; " in str(caught.value)
    assert str(caught.value).endswith(f"{__file__}:{line - 1}")


@pytest.mark.parametrize("schema", ["", "f", "f(", "f(Tensor x)", "f(Tenser x) -> ()", "1(int a)"])
def test_a_schema_that_does_not_parse_is_refused(lib, dispatcher, schema):
    with pytest.raises(SchemaError):
        lib.define(schema)
    assert dispatcher.operators() == []


@pytest.mark.parametrize("kind", ["", "FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION"])
def test_the_kind_of_alias_analysis_is_kept_and_shown(lib, dispatcher, kind):
    name = lib.define("pure(Tensor x) -> Tensor", kind)
    state = dispatcher.get_schema(f"{lib.ns}::{name}").dump_state()
    assert f"alias analysis kind: {kind or 'FROM_SCHEMA'}\n" in state


def test_an_unknown_alias_analysis_is_refused(lib):
    lib.define("f(Tensor x) -> Tensor", "CONSERVATIVE")
    with pytest.raises(RegistrationError, match="there is no alias analysis kind 'GUESS'"):
        lib.define("g(Tensor x) -> Tensor", "GUESS")


@pytest.mark.parametrize(
    ("schema", "tag", "reason"),
    [
        ("f(Tensor x) -> Tensor", "out", "writes to no argument"),
        ("f(Tensor x, Tensor(a!) y) -> Tensor(a!)", "out", "'y', which is not keyword-only"),
        ("f(*, Tensor(a!)[] y) -> ()", "out", "'y', which is not a Tensor"),
        ("f(*, Tensor(a!) y) -> ()", "out", "returns 0 values"),
        ("f(*, Tensor(a!) y) -> Tensor", "out", "return 0 is Tensor, and not 'y'"),
        ("f(*, Tensor(a!) y) -> Tensor(a)", "out", r"return 0 is Tensor\(a\)"),
        (
            "f(*, Tensor(a!) y, Tensor(b!) z) -> (Tensor(b!), Tensor(a!))",
            "out",
            r"return 0 is Tensor\(b!\), and not 'y'",
        ),
        ("f() -> Tensor", "inplace", "no positional argument"),
        ("f(*, Tensor(a!) x) -> Tensor(a!)", "inplace", "no positional argument"),
        ("f(Tensor x) -> Tensor", "inplace", "its first argument is Tensor x"),
        ("f(Tensor(a!)[] x) -> Tensor(a!)[]", "inplace", "its first argument is"),
        ("f(Tensor(a!) x, Tensor(b!) y) -> Tensor(a!)", "inplace", "writes to 'y', too"),
        ("f(Tensor(a!) x) -> ()", "inplace", "returns 0 values"),
        ("f(Tensor(a!) x) -> Tensor", "inplace", "return 0 is Tensor, and not 'x'"),
    ],
)
def test_a_tag_that_the_schema_contradicts_is_refused(lib, schema, tag, reason):
    with pytest.raises(SchemaError, match=f"has the tag '{tag}', and .*{reason}"):
        lib.define(schema, tags=("core", tag))
    assert lib.define(schema, tags="core") == "f"


def test_define_refuses_a_tag_that_there_is_not(lib):
    with pytest.raises(SchemaError, match=r"no tag 'pointwize'.*did you mean 'pointwise'"):
        lib.define("f(Tensor x) -> Tensor", tags=("core", "pointwize"))
    with pytest.raises(SchemaError, match=r"no tag 'mine'.*there are core, "):
        define("t::f", "(Tensor x) -> Tensor", lib=lib, tags="mine")
    name = lib.define("f(Tensor x) -> Tensor", tags={Tag.core, "core"})
    assert lib.dispatcher.get_schema(f"{lib.ns}::{name}").tags == [Tag.core]


def test_tags_that_the_schema_agrees_with(lib):
    lib.define("f.out(Tensor x, *, Tensor(a!) y) -> Tensor(a!)", tags="out")
    lib.define(
        "f.both(*, Tensor(a!) y, Tensor(b!) z) -> (Tensor(a!), Tensor(b!))", tags=["core", "out"]
    )
    lib.define("f_(Tensor(a!) x, Tensor y) -> Tensor(a!)", tags="inplace")
