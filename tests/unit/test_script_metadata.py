"""Inline script metadata, as sources have it and as strangers might write it."""

from __future__ import annotations

import contextlib
import re
import tomllib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.daemon.environments.script_metadata import (
    NESTING_LIMIT,
    read_script_metadata,
)
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.library_source import METADATA_LIMIT
from tests.work_done import check_linear_work

# The expression of the specification, which ours has to agree with where it ends in time.
SPECIFIED = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
LINES = st.sampled_from(
    ["# /// script", "# /// other", "# ///", "#", "# #", "# #1", "", "x", "#x", "# ///x"]
)


def block_of(toml: str) -> bytes:
    lines = "".join(f"# {line}\n" for line in toml.split("\n"))
    return f"# /// script\n{lines}# ///\n".encode()


def read(toml: str) -> dict[str, object]:
    return read_script_metadata(block_of(toml), "ops.py")


@given(st.lists(LINES, max_size=9))
def test_blocks_are_those_that_the_specification_finds(lines: list[str]):
    text = "\n".join(lines)
    found = [match for match in SPECIFIED.finditer(text) if match["type"] == "script"]
    toml = "".join(f"{line[2:]}\n" for match in found for line in match["content"].splitlines())
    if len(found) > 1 or "///" in toml:
        with pytest.raises(LibraryLoadError):
            read_script_metadata(text.encode(), "ops.py")
    else:
        assert read_script_metadata(text.encode(), "ops.py") == tomllib.loads(toml)


def test_a_closing_line_within_a_block_belongs_to_it():
    script = b"# /// script\n# a = 1\n# ///\n# b = 2\n# ///\nx = 1\n"
    with pytest.raises(LibraryLoadError, match="is not TOML"):
        read_script_metadata(script, "ops.py")


@pytest.mark.parametrize(
    "line", [b"# /// a\n", b"# /// script\n", b"# /// a\n# ///\n", b"# /// a\n#\n", b"#\n"]
)
def test_work_grows_with_the_lines_not_with_their_square(line: bytes):
    def read_lines(script: bytes) -> None:
        with contextlib.suppress(LibraryLoadError):
            read_script_metadata(script, "ops.py")

    check_linear_work(read_lines, lambda size: line * (size // len(line)), 128 * 1024)


@pytest.mark.parametrize(
    "toml",
    [
        "a = " + "1" * 5000,
        "a = " + "[" * 20_000,
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a = " + "{a=" * 15_000,
        ".".join("a" * 30_000) + " = 1",
        '"".' * 15_000 + "a = 1",
        "[" + "a . " * 15_000 + "a]",
        "a = 9999-99-99",
        'a = "\\ud800"',
        'a = """' + '\\"""' * 10_000,
    ],
    ids=lambda toml: toml[:12],
)
def test_toml_of_hostile_shape_is_refused_in_little_memory(toml: str):
    tracemalloc.start()
    try:
        with pytest.raises(LibraryLoadError, match="script metadata of ops"):
            read(toml)
        assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    finally:
        tracemalloc.stop()


def test_nesting_is_refused_beyond_its_limit():
    at_limit = NESTING_LIMIT
    assert read(f"a = {'[' * at_limit}{']' * at_limit}")
    assert read(f"{'.'.join('a' * at_limit)} = 1")
    with pytest.raises(LibraryLoadError, match=f"{at_limit} levels at line 2"):
        read(f"b = 1\na = {'[' * (at_limit + 1)}{']' * (at_limit + 1)}")
    with pytest.raises(LibraryLoadError, match=f"{at_limit} levels at line 1"):
        read(f"{'.'.join('a' * (at_limit + 1))} = 1")


def test_dots_and_brackets_in_texts_and_comments_are_no_nesting():
    assert read(f'a = "{"." * 100}[[{"[" * 100}"  # {"[" * 100}') == {"a": "." * 100 + "[" * 102}
    assert read(f"a = '''\n{'[' * 100}'''") == {"a": "[" * 100}
    assert read(f'a = """\\"{"[" * 100}"""') == {"a": '"' + "[" * 100}


def test_only_the_start_of_a_file_has_metadata():
    block = block_of("a = 1")
    assert read_script_metadata(b"#" * (METADATA_LIMIT // 2) + b"\n" + block, "x") == {"a": 1}
    assert read_script_metadata(b"x\n" * (METADATA_LIMIT // 2) + block, "x") == {}
    with pytest.raises(LibraryLoadError, match="does not end within the first"):
        read_script_metadata(b"# /// script\n" + b"# a\n" * METADATA_LIMIT + b"# ///\n", "x")


def test_separators_that_are_no_newline_do_not_end_a_line():
    assert read('a = "b\u2028c"') == {"a": "b\u2028c"}


@given(st.one_of(st.text(), st.text("a1.=[]{}\"'#\\\n -", max_size=200)))
def test_any_block_is_a_table_or_refused(toml: str):
    with contextlib.suppress(LibraryLoadError):
        assert isinstance(
            read_script_metadata(block_of(toml.encode(errors="replace").decode()), "x"), dict
        )
