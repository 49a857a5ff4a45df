"""Uploads that are damaged or mean harm: refused with a sentence, and nothing is unpacked."""

from __future__ import annotations

import gc
import io
import os
import resource
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opdispatch_server.library_code import archive_members, library_archive
from opdispatch_server.library_code.library_archive import read_main_source
from opdispatch_server.library_code.unpacked_libraries import LibraryFolder, UnpackedLibraries
from opdispatch_wire.errors import LibraryLoadError

Read = Callable[[bytes, str, str], object]


@pytest.fixture
def read_main(tmp_path: Path) -> Read:
    """Read the main module's source, as a daemon does before it sends it to an interpreter."""

    def read(content: bytes, filename: str, library: str) -> bytes:
        upload = tmp_path / "upload"
        upload.write_bytes(content)
        return read_main_source(upload, filename, library)

    return read


@pytest.fixture
def unpack(tmp_path: Path) -> Read:
    """Unpack an upload and return the folder; nothing is left if that fails."""

    def read(content: bytes, filename: str, library: str) -> Path:
        upload = tmp_path / "upload"
        upload.write_bytes(content)
        unpacked = UnpackedLibraries(tmp_path / "unpacked")
        try:
            path = unpacked.unpack(upload, "0" * 64, filename)
            LibraryFolder(path, filename, library).close()
            return path
        except LibraryLoadError:
            unpacked.remove()
            assert list((tmp_path / "unpacked").iterdir()) == []
            raise

    return read


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files:
            archive.writestr(name, data)
    return out.getvalue()


def renamed(old: bytes, new: bytes) -> bytes:
    """An archive whose file has a name that zipfile itself would not write."""
    assert len(old) == len(new)
    return zipped((old.decode(), b"x = 1")).replace(old, new)


def entry(name: str, *, kind: int = 0, flags: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    info.flag_bits = flags
    return info


def in_code_page() -> bytes:
    """Write a name that is not ASCII without its encoding."""
    content = bytearray(zipped(("ops\u00e9.py", b"x = 1")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset + 1] &= ~0x08
    return bytes(content)


def encrypted() -> bytes:
    content = bytearray(zipped(("ops.py", b"x = 1")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    return bytes(content)


def lying_about_its_size() -> bytes:
    """Declare 5 bytes, and have a million."""
    content = bytearray(zipped(("ops.py", b"#" * 10**6), method=zipfile.ZIP_DEFLATED))
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", content, content.index(signature) + offset, 5)
    return bytes(content)


def overlapping() -> bytes:
    """Many entries of the directory, and one file that all of them mean."""
    content = zipped(("a0000.py", b"#" * 5000))
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    one = content[start:end]
    many = b"".join(one.replace(b"a0000", b"a%04d" % n) for n in range(100))
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 100, 100, len(many), start, 0)
    return content[:start] + many + tail


def bomb() -> bytes:
    """Return few bytes that become 40 MiB; to make them takes longer than all the others."""
    return zipped(("ops.py", b"0" * 40 * 2**20), method=zipfile.ZIP_DEFLATED)


GOOD = zipped(("ops.py", b"x = 1"))

HOSTILE = {
    "above": (zipped(("../ops.py", b"")), "outside the archive"),
    "above in the middle": (zipped(("a/../../ops.py", b"")), "outside the archive"),
    "absolute": (zipped(("/etc/ops.py", b"")), "outside the archive"),
    "drive": (zipped(("C:ops.py", b"")), "outside the archive"),
    "drive and root": (zipped(("C:/ops.py", b"")), "outside the archive"),
    "backslashes": (renamed(b"abcdeops.py", b"..\\..\\op.py"), "outside the archive"),
    "share": (renamed(b"abcd/ops.py", b"\\\\x\\y\\op.py"), "outside the archive"),
    "nul": (renamed(b"ops_x.py", b"ops\0x.py"), "control characters"),
    "newline": (zipped(("ops\n.py", b"")), "control characters"),
    "twice": (zipped(("ops.py", b"1"), ("./ops.py", b"2")), "twice"),
    "link": (zipped((entry("ops.py", kind=stat.S_IFLNK), b"/etc/passwd")), "a symbolic link"),
    "pipe": (zipped((entry("ops.py", kind=stat.S_IFIFO), b"")), "neither a file nor a folder"),
    "encrypted": (encrypted(), "is encrypted"),
    "lzma": (zipped(("ops.py", b"x"), method=zipfile.ZIP_LZMA), "compressed by method 14"),
    "bomb": (bomb, "times its own size"),
    "deep": (zipped((f"{'a/' * 32_000}ops.py", b"")), "the limit is 1024"),
    "in many folders": (zipped((f"{'a/' * 40}ops.py", b"")), "in 40 folders.*the limit is 31"),
    "long": (zipped((f"{'a' * 300}.py", b"")), "303 bytes.*the limit is 255"),
    "device": (zipped(("ops.py", b""), ("data/NUL.bin", b"")), "like a device: 'data/NUL.bin'"),
    "case": (
        zipped(("ops.py", b""), ("Ops.py", b"")),
        "capitals or accents: 'ops.py' and 'Ops.py'",
    ),
    "case of a folder": (zipped(("a/x.py", b""), ("A/y.py", b"")), "capitals or accents"),
    "file and folder": (zipped(("ops.py", b""), ("ops.py/x.py", b"")), "as a file and as a folder"),
    "no utf-8": (renamed("opsé.py".encode(), b"ops\xff\xfe.py"), "damaged|UTF-8"),
    "code page": (in_code_page(), "not UTF-8"),
    "overlapping": (overlapping(), "overlap"),
    "truncated": (zipped(("ops.py", b"x = 1" * 100))[:-40], "not a zip archive we can read"),
    "no zip": (b"hello", "not a zip archive we can read"),
    "empty": (b"", "not a zip archive we can read"),
    "empty archive": (zipped(), "no Python module"),
    "changed": (GOOD.replace(b"x = 1", b"x = 2"), "Bad CRC"),
    "lying": (lying_about_its_size(), "ops.zip"),
}


def content_of(which: str) -> bytes:
    made, _ = HOSTILE[which]
    return made() if callable(made) else made


@pytest.mark.parametrize("read", ["read_main", "unpack"])
@pytest.mark.parametrize("which", HOSTILE)
def test_hostile_or_damaged_archive_is_refused(
    which: str, read: str, request: pytest.FixtureRequest
):
    content, words = content_of(which), HOSTILE[which][1]
    with pytest.raises(LibraryLoadError, match=words) as caught:
        request.getfixturevalue(read)(content, "ops.zip", "ops")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_archive_has_so_many_files_and_bytes_and_no_more(
    unpack: Read, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(archive_members, "MEMBERS_LIMIT", 2)
    files = [(f"m{number}/", b"") for number in range(3)]
    with pytest.raises(LibraryLoadError, match="3 files; the limit is 2"):
        unpack(zipped(*files), "ops.zip", "ops")
    monkeypatch.setattr(archive_members, "UNPACKED_BYTES_LIMIT", 9)
    with pytest.raises(LibraryLoadError, match=r"unpacks to 10 bytes; the limit is 9; .*ops\.py"):
        unpack(zipped(("ops.py", b"# 34567890")), "ops.zip", "ops")
    unpack(zipped(("ops.py", b"# 3456789")), "ops.zip", "ops")


@pytest.mark.parametrize("which", ["bomb", "deep"])
def test_bomb_is_refused_before_it_takes_memory(which: str, read_main: Read):
    content = content_of(which)
    tracemalloc.start()
    try:
        with pytest.raises(LibraryLoadError):
            read_main(content, "ops.zip", "ops")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


def test_list_of_members_has_a_limit_of_its_own(read_main: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library_archive, "DIRECTORY_BYTES_LIMIT", 70_000)
    many = zipped(*((f"{'m' * 200}{number}.py", b"") for number in range(300)))
    with pytest.raises(LibraryLoadError, match=r"list of members .* the limit is 70000"):
        read_main(many, "ops.zip", "ops")


def test_main_module_has_a_limit(read_main: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(library_archive, "MAIN_SOURCE_BYTES_LIMIT", 10)
    for content, filename in ((b"#" * 11, "ops.py"), (zipped(("ops.py", b"#" * 11)), "ops.zip")):
        with pytest.raises(LibraryLoadError, match=r"ops.py .* 11 bytes; the limit is 10"):
            read_main(content, filename, "ops")


def test_main_source_is_that_of_the_module_that_is_imported(read_main: Read):
    content = zipped(("ops/__init__.py", b"a"), ("ops/x.py", b"b"), ("other.py", b"c"), ("d/", b""))
    assert read_main(content, "up.zip", "ops") == b"a"
    assert read_main(content, "up.zip", "other") == b"c"
    assert read_main(zipped(("ops/x.py", b"b")), "up.zip", "lib") == b""
    assert read_main(b"text", "ops.py", "lib") == b"text"
    with pytest.raises(LibraryLoadError, match="ends in"):
        read_main(b"text", "ops.exe", "lib")


def test_unpacked_files_are_where_and_what_they_were_and_read_only(unpack: Read):
    path = unpack(zipped(("ops/__init__.py", b"a"), ("ops/data/w.bin", b"123")), "o.zip", "ops")
    assert isinstance(path, Path)
    assert (path / "ops" / "data" / "w.bin").read_bytes() == b"123"
    assert {stat.S_IMODE(p.stat().st_mode) for p in path.rglob("*") if p.is_file()} == {0o444}
    assert {stat.S_IMODE(p.stat().st_mode) for p in (path, path / "ops")} == {0o555}
    assert unpack(zipped(("ops/__init__.py", b"other")), "o.zip", "ops") == path  # by its digest
    assert (path / "ops" / "__init__.py").read_bytes() == b"a"


def test_a_folder_that_takes_the_last_descriptor_keeps_it_while_its_error_is_handled(
    tmp_path: Path,
):
    (tmp_path / "f.py").write_text("")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    try:
        # Its own descriptor is the last one: none is left to look into the folder.
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))
        with pytest.raises(LibraryLoadError, match="cannot be read: Too many open files") as caught:
            LibraryFolder(tmp_path, "f.py", "f")
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        del caught
        gc.collect()
        os.close(os.open(os.devnull, os.O_RDONLY))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    folder = LibraryFolder(tmp_path, "f.py", "f")
    folder.close()
    folder.close()
