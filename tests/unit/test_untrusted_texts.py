"""Every entry point for untrusted texts: errors of ours only, in work that stays linear.

What is tried are pieces of each language, repeated: what backtracks, recurses, copies or converts
too much shows in how the work grows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opdispatch.errors import OpdispatchError
from opdispatch.schema.parser import parse_schema
from opdispatch_client.cli.convert_by_schema import read_arguments
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.parse_literals import parse_literal
from opdispatch_server.daemon.environments.library_home import normalise_requirements, read_home
from opdispatch_server.daemon.environments.store import find_key
from opdispatch_wire.addresses import parse_address
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.requirements_file import read_requirements
from opdispatch_wire.v1 import registry_pb2
from tests.work_done import check_linear_work

SIZE = 24 * 1024
SIGNS = st.sampled_from(
    [*"a1()[]{}\"'\\# \n\t.,;=-@:?!|*<>~$%_+/", "\0", "\x1b", "\u2028", "é", "\ud800"]
)
WORDS = st.sampled_from(
    [
        *(
            "# /// script\n",
            "# ///\n",
            "# a = 1\n",
            "a = ",
            "[a]\n",
            "[[a]]\n",
            "{a=",
            '"""',
            "'''",
        ),
        *(
            "-r ",
            "-e ",
            "--hash=",
            " @ ",
            "file://",
            "http://[",
            ">=1",
            "a;",
            "os_name=='a'",
            " and ",
        ),
        *("Tensor", "int[] ", "(a!)", "Dict(str, ", "->", "::", "0x", "1e", '\\"', "=[", "tensor:"),
        *("unix:", "[::", "~/", "../", "dtype:", "@", "1j", "-inf", "null"),
    ]
)
PIECES = st.lists(SIGNS | WORDS, min_size=1, max_size=3).map("".join)


def encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def read_metadata(text: str) -> object:
    return read_home(None, isolated=False, script=encoded(text), label="x.py")


def read_block(text: str) -> object:
    lines = "".join(f"# {line}\n" for line in text.split("\n"))
    return read_metadata(f"# /// script\n{lines}# ///\n")


def read_versions(text: str) -> object:
    environment = registry_pb2.Environment(requires_python=encoded(text).decode())
    return read_home(environment, isolated=False, script=b"", label="x.py")


def read_lines(text: str) -> object:
    home = read_home(
        registry_pb2.Environment(requirements=encoded(text).decode().split("\n")),
        isolated=False,
        script=b"",
        label="x.py",
    )
    return find_key(home)


ENTRIES: dict[str, Callable[[str], Any]] = {
    "metadata": read_metadata,
    "metadata's TOML": read_block,
    "versions of Python": read_versions,
    "requirement": lambda text: normalise_requirements([text]),
    "requirements": read_lines,
    "client's requirements": lambda text: read_requirements(text.split("\n")),
    "schema": parse_schema,
    "schema's arguments": lambda text: parse_schema(f"f({text}) -> ()"),
    "argument": parse_literal,
    "tensor": lambda text: parse_literal(f"tensor:{text}"),
    "arguments": lambda text: read_arguments([text], []),
    "address": parse_address,
}


@pytest.mark.parametrize("entry", ENTRIES)
@settings(
    deadline=None,
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(before=PIECES | st.just(""), piece=PIECES, after=PIECES | st.just(""))
def test_a_hostile_text_is_refused_in_time(
    entry: str,
    before: str,
    piece: str,
    after: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> None:
        with contextlib.suppress(OpdispatchError, UsageError):
            ENTRIES[entry](text)

    check_linear_work(read, lambda size: before + piece * (size // len(piece)) + after, SIZE)


@pytest.mark.parametrize("entry", ENTRIES)
@given(st.text() | st.lists(SIGNS | WORDS, max_size=12).map("".join))
def test_any_text_is_read_or_refused_by_an_error_of_ours(entry: str, text: str):
    with contextlib.suppress(OpdispatchError, UsageError):
        ENTRIES[entry](text)


def test_requirements_files_that_include_each_other_twice_come_to_an_end(tmp_path: Path):
    for number in range(30):
        include = f"-r {number + 1}.txt\n" * 2 if number < 29 else ""
        (tmp_path / f"{number}.txt").write_text(include)
    with pytest.raises(LibraryLoadError, match="more than 100 requirements files"):
        read_requirements(tmp_path / "0.txt")


@pytest.mark.parametrize("place", ["~no-user-of-this-name/a.whl", "./a\ud800", "-e ./\ud800"])
def test_a_place_that_is_none_is_a_requirement_or_refused(place: str):
    try:
        assert read_requirements([place])
    except LibraryLoadError as error:
        assert "is not a valid path" in error.message  # noqa: PT017


def test_a_line_with_several_lines_hides_none_of_them_in_a_comment():
    for line in ("a # b\n-e /path", "a #\u2028-e /path", "# a\r-e /path"):
        with pytest.raises(LibraryLoadError, match="more than one line"):
            read_requirements([line])
        with pytest.raises(LibraryLoadError, match="more than one line"):
            normalise_requirements([line])
    assert read_requirements(["a  # " + "b" * 10_000]) == ["a"]
