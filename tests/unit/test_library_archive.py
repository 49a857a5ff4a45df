"""Uploads that are damaged or mean harm: refused with a sentence, and nothing is unpacked."""

from __future__ import annotations

import io
import stat
import struct
import tracemalloc
import zipfile

import pytest

from opdispatch_server.library_code import archive_members
from opdispatch_server.library_code.library_archive import read_archive, read_main_source
from opdispatch_wire.errors import LibraryLoadError


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


def encrypted() -> bytes:
    content = bytearray(zipped(("ops.py", b"x = 1")))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + offset] |= 1
    return bytes(content)


def lying_about_its_size() -> bytes:
    """Declares 5 bytes, and has a million."""
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
    "bomb": (
        zipped(("ops.py", b"0" * 40 * 2**20), method=zipfile.ZIP_DEFLATED),
        "times its own size",
    ),
    "overlapping": (overlapping(), "overlap"),
    "truncated": (zipped(("ops.py", b"x = 1" * 100))[:-40], "not a zip archive we can read"),
    "no zip": (b"hello", "not a zip archive we can read"),
    "empty": (b"", "not a zip archive we can read"),
    "empty archive": (zipped(), "no Python module"),
    "changed": (GOOD.replace(b"x = 1", b"x = 2"), "not a zip archive we can read"),
    "lying": (lying_about_its_size(), "ops.zip"),
}


@pytest.mark.parametrize("read", [read_archive, read_main_source])
@pytest.mark.parametrize("which", HOSTILE)
def test_a_hostile_or_damaged_archive_is_refused(which: str, read):
    content, words = HOSTILE[which]
    with pytest.raises(LibraryLoadError, match=words) as caught:
        read(content, "ops.zip", "ops")
    assert "\n" not in str(caught.value)


def test_an_archive_has_so_many_files_and_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_members, "MEMBERS_LIMIT", 2)
    files = [(f"m{number}/", b"") for number in range(3)]
    with pytest.raises(LibraryLoadError, match="3 files; the limit is 2"):
        read_archive(zipped(*files), "ops.zip", "ops")
    monkeypatch.setattr(archive_members, "UNPACKED_BYTES_LIMIT", 9)
    read_archive(zipped(("ops.py", b"# 3456789")), "ops.zip", "ops")
    with pytest.raises(LibraryLoadError, match="unpacks to 10 bytes; the limit is 9"):
        read_archive(zipped(("ops.py", b"# 34567890")), "ops.zip", "ops")


def test_a_bomb_is_refused_before_it_is_unpacked():
    content = HOSTILE["bomb"][0]
    tracemalloc.start()
    try:
        with pytest.raises(LibraryLoadError):
            read_archive(content, "ops.zip", "ops")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**20


def test_the_main_source_is_that_of_the_module_that_is_imported():
    content = zipped(("ops/__init__.py", b"a"), ("ops/x.py", b"b"), ("other.py", b"c"), ("d/", b""))
    assert read_main_source(content, "up.zip", "ops") == b"a"
    assert read_main_source(content, "up.zip", "other") == b"c"
    assert read_main_source(zipped(("ops/x.py", b"b")), "up.zip", "lib") == b""
    assert read_main_source(b"text", "ops.py", "lib") == b"text"
    with pytest.raises(LibraryLoadError, match="ends in"):
        read_main_source(b"text", "ops.exe", "lib")
