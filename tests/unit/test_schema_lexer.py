import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch.schema.lexer import (
    END,
    NEWLINE,
    is_identifier,
    is_number,
    is_string,
    split,
    split_with_offsets,
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("f(Tensor x)->()", ["f", "(", "Tensor", "x", ")", "->", "(", ")"]),
        ("a::b.c", ["a", ":", ":", "b", ".", "c"]),
        (
            "1 1. .5 1e5 1e 0x1F 0x 1.5j 1jj",
            ["1", "1.", ".5", "1e5", "1", "e", "0x1F", "0", "x", "1.5j", "1j", "j"],
        ),
        ("1... ....", ["1.", ".", ".", "...", "."]),
        ("-->", ["-", "->"]),
        ("\"a'b\" 'c\\'d' '' ''''''", ['"a\'b"', "'c\\'d'", "''", "''''''"]),
        ("f \"open 'a\nb'", ["f", '"']),
        ("é $", ["é", "$"]),
    ],
)
def test_a_text_is_split_into_its_words(text, tokens):
    assert [token for token in split(text) if token != NEWLINE] == [*tokens, END]


def test_line_ends_count_only_between_words_outside_brackets():
    assert split("\n\nf(\nx\n)\n\n") == ["f", "(", "x", ")", END]
    assert split("f\ng") == ["f", NEWLINE, "g", END]
    assert split("f \\\n g") == ["f", "g", END]
    assert split("f # g\n# h\n") == ["f", END]
    assert "#" in split("f # type: g")


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\n#\\")))
def test_both_ways_of_splitting_agree(text):
    with_offsets = list(split_with_offsets(text))
    assert split(text) == [token for token, _ in with_offsets]
    assert all(text.startswith(token, offset) for token, offset in with_offsets)


def test_words_are_of_one_kind():
    assert is_identifier("_a1")
    assert not any(map(is_identifier, ["None", "in", "1a", "é", "", "'a'"]))
    assert is_number(".5")
    assert not any(map(is_number, [".", "...", "a1", ""]))
    assert is_string("''")
    assert not is_string("'")
