"""``opdispatch state export -`` and ``import -``: an archive through a pipe."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cli.conftest import SCRIPT
from tests.waits import LONGEST_WAIT

ARCHIVE = Path(__file__).parents[1] / "service" / "journals" / "format-1.zip"


def state(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [SCRIPT, "state", *words]
    return subprocess.run(command, input=given, capture_output=True, timeout=LONGEST_WAIT)


def test_archive_goes_through_a_pipe_and_comes_back(tmp_path: Path):
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    said = b"imported 2 libraries with 2 uploads, up to event 8\n"
    assert state("import", "-", "--state", first, given=ARCHIVE.read_bytes()).stdout == said
    exported = state("export", "-", "--state", first)
    assert exported.stderr == said.replace(b"imported", b"exported")
    assert state("import", "-", "--state", second, given=exported.stdout).stdout == said


def test_stream_that_ends_early_changes_nothing(tmp_path: Path):
    done = state("import", "-", "--state", str(tmp_path / "s"), given=ARCHIVE.read_bytes()[:-30])
    assert done.returncode == 1
    assert b"the archive cannot be imported" in done.stderr
    assert not (tmp_path / "s" / "journal").exists()


def test_export_without_a_journal_writes_nothing_to_the_stream(tmp_path: Path):
    done = state("export", "-", "--state", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"there is no journal in" in done.stderr
