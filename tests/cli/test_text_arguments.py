"""Arguments of ``opdispatch call`` from files and standard input."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opdispatch.schema.parser import parse_schema
from opdispatch_client.cli.convert_by_schema import read_arguments
from opdispatch_client.cli.exit_codes import UsageError
from tests.cli.conftest import SCRIPT, RunCommand
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

TEXT = "first line\nsecond line: ä, 3, @you\n"
SHOW = parse_schema("t::show(str text, str? more=None) -> str")
SHOW_TENSOR = parse_schema("t::show.Tensor(Tensor x) -> str")


class Standard(io.TextIOWrapper):
    """Standard input with these bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(TEXT)
    (tmp_path / "picture.npy").write_bytes(npy(np.arange(3)))
    return "@notes.txt"


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_text_of_a_file_is_taken_as_it_is(notes: str):
    for overloads in ([SHOW], [SHOW_TENSOR, SHOW]):
        read = read_arguments([notes, f"more={notes}"], overloads)
        assert (read.args, read.kwargs) == ([TEXT], {"more": TEXT})
        assert read.schema is SHOW


def test_file_is_an_array_where_the_schema_wants_one(notes: str):
    read = read_arguments(["@picture.npy"], [SHOW_TENSOR, SHOW])
    assert read.schema is SHOW_TENSOR
    assert read.args[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("text", ['"@you"', '"-"', "you@there", "--"])
def test_text_that_is_no_file_can_be_written(text: str):
    assert read_arguments([text], [SHOW]).args == [text.strip('"')]


@pytest.mark.parametrize("name", ["-", "@-"])
def test_standard_input_is_a_text(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", Standard(TEXT.encode()))
    assert read_arguments([name], [SHOW]).args == [TEXT]
    # Looked at once for each overload, and there only once.
    monkeypatch.setattr(sys, "stdin", Standard(TEXT.encode()))
    assert read_arguments([name], [SHOW_TENSOR, SHOW]).args == [TEXT]


def test_standard_input_is_an_array_where_the_schema_wants_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", Standard(npy(np.arange(3))))
    assert read_arguments(["@-"], [SHOW_TENSOR]).args[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("texts", "stdin", "message"),
    [
        (["@you"], b"", r"argument 1: there is no file 'you' \(a text that begins with @ is "),
        (["@picture.npy"], b"", r"'picture.npy' is not UTF-8: byte 0 is wrong"),
        (["@."], b"", r"cannot read '\.': Is a directory"),
        (["-", "more=@-"], b"", r"standard input can be one argument"),
        (["-"], b"\xff", r"standard input is not UTF-8"),
    ],
)
def test_unreadable_argument_is_named_in_the_error(
    notes: str, texts: list[str], stdin: bytes, message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", Standard(stdin))
    with pytest.raises(UsageError, match=message):
        read_arguments(texts, [SHOW])


def test_closed_standard_input_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="standard input is closed"):
        read_arguments(["-"], [SHOW])


def test_a_text_goes_through_a_pipe(daemon: RunningDaemon, run: RunCommand):
    done = subprocess.run(
        [SCRIPT, "--address", daemon.address, "call", "shop::show", "-"],
        input=b"from a pipe",
        capture_output=True,
        timeout=LONGEST_WAIT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"'from a pipe' 1.0 None\n", b"")
    assert run("call", "shop::show", "@nowhere.txt").code == 2
