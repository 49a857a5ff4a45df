"""Sources that `load` takes, and the uploads that they become."""

from __future__ import annotations

import hashlib
import io
import os
import tracemalloc
import zipfile

import pytest

from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.library_source import INLINE_BYTES_LIMIT, load_source


def test_a_file_is_uploaded_whole(tmp_path):
    path = tmp_path / "image_ops.py"
    path.write_text("x = 1\n")
    for source in (path, str(path)):
        request = load_source(source, name="other", interpreter="worker-1").request
        assert (request.content, request.filename) == (b"x = 1\n", "image_ops.py")
        assert (request.name, request.interpreter) == ("other", "worker-1")
        assert request.WhichOneof("source") == "content"


@pytest.mark.parametrize("name", ["kernels", "my_kernels.image", "_private"])
def test_a_dotted_name_is_a_module(name):
    request = load_source(name).request
    assert (request.module, request.WhichOneof("source")) == (name, "module")


def test_a_package_folder_is_sent_as_the_same_archive_every_time(tmp_path):
    package = tmp_path / "kernels"
    (package / "inner").mkdir(parents=True)
    (package / "__pycache__").mkdir()
    for name in ("__init__.py", "inner/__init__.py", "__pycache__/a.pyc", ".hidden"):
        (package / name).write_text(name)
    request = load_source(package).request
    assert request.filename == "kernels.zip"
    with zipfile.ZipFile(io.BytesIO(request.content)) as archive:
        assert archive.namelist() == ["kernels/__init__.py", "kernels/inner/__init__.py"]
    (package / "inner" / "__init__.py").touch()
    assert load_source(package).request.content == request.content


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("missing.py", "there is no file 'missing.py'"),
        ("./missing", "there is no file 'missing'"),
        ("my-kernels", "neither a .py or .zip file nor the dotted name"),
        ("", "neither"),
    ],
)
def test_missing_source_raises_library_load_error(source, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LibraryLoadError, match=problem):
        load_source(source)


def test_other_files_and_folders_are_refused(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(LibraryLoadError, match="not a kernel library"):
        load_source(tmp_path / "a.txt")
    with pytest.raises(LibraryLoadError, match=r"no __init__\.py"):
        load_source(tmp_path)


def test_the_name_of_a_file_is_no_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.txt").touch()
    (tmp_path / "edges").touch()
    with pytest.raises(LibraryLoadError, match=r"'edges\.txt' is not a kernel library"):
        load_source("edges.txt")
    assert load_source("edges").request.module == "edges"
    assert load_source("edges.sobel").request.module == "edges.sobel"


def test_file_names_that_are_not_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"caf\xe9.py")
    path.write_text("x = 1\n")
    assert load_source(path, name="cafe").request.filename == "caf\N{REPLACEMENT CHARACTER}.py"
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    path.rename(package / path.name)
    with pytest.raises(LibraryLoadError, match="a file whose name is not UTF-8: 'kernels/caf"):
        load_source(package)


def test_large_content_is_uploaded_first_and_equal_to_the_archive(tmp_path):
    package = tmp_path / "kernels"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n")
    weights = os.urandom(INLINE_BYTES_LIMIT)
    (package / "data" / "weights.bin").write_bytes(weights)
    (package / "data" / "tool").write_text("#!")
    (package / "data" / "tool").chmod(0o700)
    request, content = load_source(package)
    assert content is not None
    whole = b"".join(content.chunks())
    assert request.WhichOneof("source") == "uploaded"
    assert request.uploaded == request.sha256 == hashlib.sha256(whole).hexdigest()
    assert content.size == len(whole)
    for offset in (0, 1, 700, len(whole) // 2, len(whole) - 1, len(whole)):
        assert b"".join(content.chunks(offset)) == whole[offset:]
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.testzip() is None
        assert archive.read("kernels/data/weights.bin") == weights
        modes = {m.filename: m.external_attr >> 16 for m in archive.infolist()}
    assert modes["kernels/data/tool"] == 0o755
    assert modes["kernels/__init__.py"] == 0o644


def test_content_is_never_in_memory_whole(tmp_path):
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    with (package / "weights.bin").open("wb") as file:
        file.truncate(64 * 2**20)
    tracemalloc.start()
    try:
        _, content = load_source(package)
        assert content is not None
        assert sum(map(len, content.chunks(1000))) == content.size - 1000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    "name", ["~no-user-of-this-name/a.py", "a" * 300 + ".py", "a/" * 3000, "a\0.py"]
)
def test_a_path_that_no_file_can_have_is_a_file_that_is_missing(name: str):
    with pytest.raises(LibraryLoadError, match="there is no file"):
        load_source(name)
