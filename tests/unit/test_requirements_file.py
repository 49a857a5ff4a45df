"""Requirements files, as the daemon gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.library_source import METADATA_LIMIT, load_source, needs_environment
from opdispatch_wire.requirements_file import read_requirements


def test_a_file_stands_for_itself_wherever_it_is_read(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.txt").write_text("-f wheels\n./local.whl\nc\n")
    main = tmp_path / "requirements.txt"
    main.write_text(
        "\ufeff# a comment\na>=1  # why\n\nb==1 \\\n  --hash=sha256:00\n-r sub/more.txt\n"
        "--find-links=https://example.org/x\n-c limits.txt\n"
    )
    assert read_requirements(main) == [
        "a>=1",
        "b==1    --hash=sha256:00",
        f"-f {tmp_path}/sub/wheels",
        f"{tmp_path}/sub/local.whl",
        "c",
        "--find-links https://example.org/x",
        f"-c {tmp_path}/limits.txt",
    ]


def test_lines_may_be_given_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.txt").write_text("b\n")
    assert read_requirements(["a", "# c", "-r r.txt"]) == ["a", "b"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(LibraryLoadError, match="missing"):
        read_requirements(tmp_path / "missing.txt")
    loop = tmp_path / "loop.txt"
    loop.write_text("-r loop.txt\n")
    with pytest.raises(LibraryLoadError, match="includes itself"):
        read_requirements(loop)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LibraryLoadError, match="is not UTF-8 text"):
        read_requirements(binary)


def test_a_load_says_what_it_needs(tmp_path: Path):
    plain = tmp_path / "plain.py"
    plain.write_text("x = 1\n")
    assert not needs_environment(load_source(plain).request)
    assert len(load_source(plain).request.sha256) == 64
    assert needs_environment(load_source(plain, isolated=True).request)
    metadata = b"# /// script\n# dependencies = []\n# ///\n"
    for before, counts in ((b"x\n", True), (b"x\n" * METADATA_LIMIT, False)):
        far = tmp_path / "far.py"
        far.write_bytes(before + metadata)
        assert needs_environment(load_source(far).request) is counts
    assert needs_environment(load_source(plain, requirements=["a"]).request)
    request = load_source(plain, python="sub/python").request
    assert Path(request.environment.python).is_absolute()
    plain.write_text("# /// script\n# dependencies = []\n# ///\n")
    assert needs_environment(load_source(plain).request)
