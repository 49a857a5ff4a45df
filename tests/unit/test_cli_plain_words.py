"""The words of plain calls, read with typer and the dispatcher and without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch.schema.parser import parse_schema
from opdispatch_client.cli.convert_by_schema import read_arguments
from opdispatch_client.cli.plain_command import (
    NotPlainError,
    PlainCommand,
    find_plain_command,
)
from opdispatch_client.cli.plain_words import plain_request, read_schema
from opdispatch_wire.calls import call_request

SCHEMA = (
    "a::b(Tensor x, float f=0.5, int? i=None, *, bool flag=False, str s, Tensor? t=None) -> Tensor"
)
TEXTS = [
    "3",
    "-2.5",
    "1e3",
    "inf",
    "1+2j",
    "true",
    "False",
    "none",
    "null",
    "text",
    '"quoted"',
    "[1,2]",
    "[[1,2.5],[3,4]]",
    "[]",
    "[[1],[2,3]]",
    "[1,true]",
    "[true]",
    "[[[-1]]]",
    "tensor:float32:[1]",
    "dtype:int8",
    "@nowhere.npy",
    "-",
    "@-",
    "{}",
    "99999999999999999999",
    "[99999999999999999999]",
    "[1",
    "\ufffd",
    "-.5",
    "+4",
    "cpu",
]


def is_plain(words: list[str], schema: str = SCHEMA) -> bool:
    """Compare both readings; return whether the words were plain."""
    name, arguments, _ = read_schema(schema)
    try:
        request = plain_request(name, arguments, words)
    except NotPlainError:
        return False
    read = read_arguments(words, [parse_schema(schema)])
    assert request == call_request(name, read.args, read.kwargs)
    return True


@given(
    st.lists(st.sampled_from(TEXTS), max_size=4),
    st.dictionaries(st.sampled_from(["x", "i", "flag", "s", "t", "no"]), st.sampled_from(TEXTS)),
)
def test_plain_words_are_read_as_all_others(by_place, by_name):
    is_plain([*by_place, *(f"{name}={text}" for name, text in by_name.items())])


@pytest.mark.parametrize(
    "words",
    [
        ["[1,2]", "s=x"],
        ["2", "2", "none", "flag=true", 's="2"', "t=[[1.5]]"],
        ["x=1.5", "i=-3", "s=@"],
    ],
)
def test_numbers_lists_words_and_texts_are_plain(words):
    assert is_plain(words) == (words[-1] != "s=@")


@pytest.mark.parametrize(
    "words",
    [
        ["[1]"],
        ["[1]", "s=x", "s=y"],
        ["[1]", "x=[1]", "s=x"],
        ["1", "2", "3", "true", "s=x"],
        ["1", "s=x", "other=1"],
        ["[1]", "i=1.5", "s=x"],
        ["[true]", "s=x"],
        ["@file.npy", "s=x"],
    ],
)
def test_errors_and_other_values_are_not_plain(words):
    assert not is_plain(words)


@pytest.mark.parametrize(
    "schema",
    [
        "a::b(Tensor(a!) x) -> Tensor(a!)",
        "a::b(Tensor[] xs) -> Tensor",
        "a::b(int[2] size) -> Tensor",
        "a::b(ScalarType? dtype=None) -> Tensor",
        "a::b(Tensor x) -> (Tensor, Tensor)",
        "a::b(Tensor x) -> Tensor[]",
        'a::b(str s="a, int b=2") -> int',
        "a::b(Generator? g=None) -> int",
        "a::b(...) -> int",
    ],
)
def test_other_schemas_are_not_plain(schema):
    assert str(parse_schema(schema)) == schema
    with pytest.raises(NotPlainError):
        read_schema(schema)


@pytest.mark.parametrize("schema", ["a::b() -> ()", "a::b.c(int? i=None) -> str"])
def test_a_plain_schema_has_the_parts_that_the_parser_finds(schema):
    parsed = parse_schema(schema)
    name, arguments, _ = read_schema(schema)
    assert name == str(parsed.name)
    assert [(a.name, a.has_default) for a in arguments] == [
        (a.name, a.has_default) for a in parsed.arguments
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("call a::b 1 -2", PlainCommand("a::b", ["1", "-2"], None, None, False)),
        ("--json call a::b.c", PlainCommand("a::b.c", [], None, None, True)),
        (
            "--address=x --timeout 1 call --timeout 2.5 a::b --address y",
            PlainCommand("a::b", [], "y", 2.5, False),
        ),
    ],
)
def test_options_stand_anywhere_and_the_last_wins(words, expected):
    assert find_plain_command(words.split()) == expected


@pytest.mark.parametrize(
    "words",
    [
        "ops call",
        "call",
        "call a::b --trace",
        "call a::b -o x.npy",
        "call a::b -- -x",
        "call --help",
        "call a::b --timeout x",
        "call a::b --timeout",
        "call a::b --address",
        "call a:b",
        "call --debug a::b",
        "call a::b -",
    ],
)
def test_other_command_lines_are_not_plain(words):
    assert find_plain_command(words.split()) is None
