"""Text of unknown origin on its way to a terminal, a log, and a document."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_wire.printable import (
    escape_in_json,
    printable_line,
    printable_lines,
    printable_message,
)

# Everything that terminals obey, and what takes the place of a line's end.
OBEYED = [
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u2028\u2029\u200e\u200f\u061c",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    "\ud800",
    "\U000e0041",
]


@pytest.mark.parametrize("character", OBEYED, ids=ascii)
def test_control_characters_never_come_through(character: str):
    text = f"a{character}b"
    line = printable_line(text)
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    assert character not in line
    lines = printable_lines(text)
    assert character == "\n" or character not in lines
    assert lines.replace("\n", "").isprintable()
    document = escape_in_json(json.dumps({text: text}, ensure_ascii=False, indent=1))
    assert character == "\n" or character not in document
    assert json.loads(document) == {text: text}


def test_text_of_every_language_stays_as_it_is():
    for text in ("", "naïve", "日本語\u3000", "\u0645\u200c\u062e", "👩\u200d👩\u200d👧", "a\xa0b"):
        assert printable_line(text) == printable_lines(text) == text
        assert escape_in_json(text) == text


def test_tabs_become_blanks_and_line_ends_newlines():
    assert printable_line("a\tb\n") == "a       b\\n"
    assert printable_lines("a\tb\r\nc\rd\n") == "a       b\nc\\rd\n"
    assert printable_message("failed\nopdispatch: loaded") == "failed\n  opdispatch: loaded"


@given(st.text(st.one_of(st.characters(), st.sampled_from(OBEYED))))
def test_escaping_is_idempotent(text: str):
    for make in (printable_line, printable_lines):
        once = make(text)
        assert make(once) == once
        assert not {*map(unicodedata.category, once.replace("\n", ""))} & {"Cc", "Cs", "Zl", "Zp"}
    assert "\n" not in printable_line(text)
    assert json.loads(escape_in_json(json.dumps(text, ensure_ascii=False))) == text
