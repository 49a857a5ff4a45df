"""Requirements of a library for its interpreters, read from requests and from its source."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.daemon.environments.library_home import (
    SHARED_HOME,
    LibraryHome,
    normalise_requirements,
    read_home,
)
from opdispatch_server.daemon.environments.store import find_key
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.v1 import registry_pb2
from tests.work_done import check_linear_work


def home_of(text: str, *, isolated: bool = False) -> LibraryHome:
    return read_home(None, isolated=isolated, script=text.encode(), label="ops.py")


def home_for(**environment: object) -> LibraryHome:
    message = registry_pb2.Environment(**environment)
    return read_home(message, isolated=False, script=b"", label="ops.py")


def test_a_library_without_metadata_is_at_home_everywhere():
    assert home_of("import numpy\n") is not SHARED_HOME
    assert home_of("import numpy\n") == SHARED_HOME
    assert home_of("import numpy\n").is_shared
    assert not home_of("", isolated=True).is_shared
    assert not home_of("", isolated=True).has_environment


def test_metadata_in_the_source_counts():
    text = '# /// script\n# dependencies = ["B>=2", "a"]\n# requires-python = ">=3.8"\n# ///\n'
    assert home_of(text) == LibraryHome(("a", "b>=2"))
    assert home_of(text.replace("\n", "\r\n")) == LibraryHome(("a", "b>=2"))
    assert home_of(text.replace("script", "other")) == SHARED_HOME


def test_a_python_that_the_daemon_does_not_run_is_part_of_the_home():
    here = platform.python_version()
    assert home_for(requires_python=f"=={here}") == SHARED_HOME
    assert home_for(requires_python=f"!={here}").requires_python == f"!={here}"
    with pytest.raises(LibraryLoadError, match="which versions of Python"):
        home_for(requires_python="yes")


def test_the_request_overrides_the_metadata():
    text = b'# /// script\n# dependencies = ["a"]\n# ///\n'
    asked = registry_pb2.Environment(requirements=["b"])
    assert read_home(asked, isolated=False, script=text, label="x") == LibraryHome(("b",))
    nothing = registry_pb2.Environment()
    assert read_home(nothing, isolated=False, script=text, label="x") == SHARED_HOME


def test_an_existing_environment_is_named_by_its_absolute_path():
    assert home_for(python="/usr/bin/python3").python == "/usr/bin/python3"
    with pytest.raises(LibraryLoadError, match="absolute path"):
        home_for(python="python3")


@pytest.mark.parametrize(
    ("lines", "normal"),
    [
        (["b", "a", "b", "", "# c"], ("a", "b")),
        (["Foo_Bar [x,A] >= 1 , <2  # why"], ("foo-bar[A,x]<2,>=1",)),
        (["a @ https://example.org/a.whl#sha256=12"], ("a @ https://example.org/a.whl#sha256=12",)),
        (["-f /x", "--no-index"], ("--no-index", "-f /x")),
        (["./dist/a-1.whl", "/b", "a-1.tar.gz"], ("./dist/a-1.whl", "/b", "a-1.tar.gz")),
        (["a==1 --hash=sha256:00"], ("a==1 --hash=sha256:00",)),
        (["a; python_version > '3'"], ('a; python_version > "3"',)),
    ],
)
def test_requirements_have_one_form(lines: list[str], normal: tuple[str, ...]):
    assert normalise_requirements(lines) == normal
    assert normalise_requirements(normal) == normal


@pytest.mark.parametrize(
    "line", ["a b", "a\n--index-url x", "a\0", "@", "a>=", "x" * 5000, "a; " + "(" * 4000]
)
def test_malformed_requirement_raises_library_load_error(line: str):
    with pytest.raises(LibraryLoadError):
        normalise_requirements([line])


def test_a_requirement_has_no_separator_of_lines():
    separators = [c for c in map(chr, range(0x110000)) if len(f"a{c}b".splitlines()) > 1]
    assert {"\n", "\v", "\x1c", "\x85", "\u2028", "\u2029"} <= {*separators}
    for separator in separators:
        for line in (f"./a{separator}-e /path", f"-f x{separator}-e /path", f"a{separator}-e /b"):
            with pytest.raises(LibraryLoadError, match="more than one line"):
                normalise_requirements([line])


def test_a_comment_is_cut_off_in_one_pass():
    def normalise(line: str) -> None:
        with pytest.raises(LibraryLoadError):
            normalise_requirements([line])

    check_linear_work(normalise, lambda size: " #" * (size // 2) + "\nx", 128 * 1024)


@pytest.mark.parametrize("versions", [">=" + "1" * 5000, ">=3.9," * 5000, ">=3.9\u2028<4"])
def test_a_range_of_versions_is_one_short_line(versions: str):
    with pytest.raises(LibraryLoadError, match="is not a range of versions"):
        home_for(requires_python=versions)
    with pytest.raises(LibraryLoadError):
        home_of(f"# /// script\n# requires-python = '{versions}'\n# ///\n")


def test_the_path_of_a_python_is_one_line():
    for path in ("/usr/bin/python3\0", "/usr/bin/python3\n/x", "/" * 5000):
        with pytest.raises(LibraryLoadError, match="is not the path of a Python"):
            home_for(python=path)


def test_there_are_not_too_many_requirements():
    with pytest.raises(LibraryLoadError, match="1001 lines"):
        normalise_requirements(f"a{number}" for number in range(1001))


@given(st.permutations(["a>=1", "b", "c[x]", "--no-index"]))
def test_the_key_does_not_depend_on_the_order(lines: list[str]):
    key = find_key(LibraryHome(normalise_requirements(lines)))
    assert key == find_key(LibraryHome(normalise_requirements(sorted(lines))))
    assert key != find_key(LibraryHome(normalise_requirements(lines[1:])))


def test_the_key_depends_on_what_is_in_a_file_that_is_required(tmp_path: Path):
    wheel = tmp_path / "a b-1.0-py3-none-any.whl"
    keys = set()
    for content in (b"1", b"2"):
        wheel.write_bytes(content)
        for line in (str(wheel), f"a @ {wheel.as_uri()}"):
            keys.add(find_key(LibraryHome((line,))))
    assert len(keys) == 4


@pytest.mark.parametrize(
    "home",
    [
        LibraryHome(),
        LibraryHome(("a", "b>=2"), ">=3.12", isolated=True),
        LibraryHome(python="/usr/bin/python3"),
    ],
)
def test_a_home_is_kept_as_json(home: LibraryHome):
    assert LibraryHome.from_json(json.loads(json.dumps(home.to_json()))) == home
    for damaged in (None, [], {}, home.to_json() | {"isolated": 1, "requirements": [3]}):
        with pytest.raises(ValueError, match="not what a library needs"):
            LibraryHome.from_json(damaged)
