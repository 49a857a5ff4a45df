"""Checks the members of a zip archive before anything is unpacked."""

from __future__ import annotations

import stat
import unicodedata
import zipfile
from pathlib import PurePosixPath, PureWindowsPath

from opdispatch_wire.errors import LibraryLoadError

MEMBERS_LIMIT = 10_000
UNPACKED_BYTES_LIMIT = 64 * 1024**3
DEPTH_LIMIT = 32
PATH_BYTES_LIMIT = 1024
"""The longest path of a member; file systems limit each part of it to 255 bytes."""
PART_BYTES_LIMIT = 255
# Source code compresses to a quarter. An archive beyond this ratio, and beyond the size at which it
# matters, was made to fill the disk.
RATIO_LIMIT = 100
RATIO_MATTERS_FROM = 32 * 1024 * 1024
# The other methods let the archive determine the memory for unpacking (dictionaries of gigabytes).
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_ENCRYPTED, _UTF8 = 0x1, 0x800
_DEVICES = frozenset(
    {"CON", "PRN", "AUX", "NUL"} | {f"{kind}{n}" for kind in ("COM", "LPT") for n in range(1, 10)}
)


def list_members(
    archive: zipfile.ZipFile, archive_bytes: int, filename: str
) -> list[zipfile.ZipInfo]:
    """Return the files in ``archive``, which is ``archive_bytes`` long, without its folders.

    Sizes are those that the archive declares; reading a member stops there. Raises
    LibraryLoadError, which names the member, for an unacceptable archive.
    """
    members = archive.infolist()
    if len(members) > MEMBERS_LIMIT:
        raise LibraryLoadError(f"{filename} has {len(members)} files; the limit is {MEMBERS_LIMIT}")
    for member in members:
        _check_member(member, filename)
    _check_duplicates(members, filename)
    _check_sizes(members, archive_bytes, filename)
    return [member for member in members if not member.is_dir()]


def _check_member(member: zipfile.ZipInfo, filename: str) -> None:
    # zipfile cuts a name at a NUL, so another tool would unpack it under another name.
    name = member.orig_filename
    _check_length(name, filename)  # before the name is parsed
    windows, posix = PureWindowsPath(name), PurePosixPath(name)
    if "\0" in name or not name.isprintable():
        raise LibraryLoadError(
            f"{filename} has a file whose name has control characters: {name[:200]!r}"
        )
    if not member.flag_bits & _UTF8 and not name.isascii():
        raise LibraryLoadError(f"{filename} has a file whose name is not UTF-8: {name[:200]!r}")
    if (
        posix.is_absolute()
        or windows.anchor
        or "\\" in name
        or ".." in posix.parts
        or not posix.parts
    ):
        raise LibraryLoadError(
            f"{filename} has a file that would lie outside the archive: {name[:200]!r}"
        )
    if any(part.partition(".")[0].rstrip().upper() in _DEVICES for part in posix.parts):
        raise LibraryLoadError(f"{filename} has a file that is named like a device: {name[:200]!r}")
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a symbolic link" if kind == stat.S_IFLNK else "neither a file nor a folder"
        raise LibraryLoadError(f"{filename}: {name[:200]!r} is {what}; expected plain files")
    if member.flag_bits & _ENCRYPTED:
        raise LibraryLoadError(f"{filename}: {name[:200]!r} is encrypted; expected plain files")
    if member.compress_type not in METHODS:
        raise LibraryLoadError(
            f"{filename}: {name[:200]!r} is compressed by method {member.compress_type}; expected "
            f"it {' or '.join(METHODS.values())}"
        )


def _check_length(name: str, filename: str) -> None:
    size = len(name.encode(errors="replace"))
    if size > PATH_BYTES_LIMIT:
        raise LibraryLoadError(
            f"{filename} has a file whose name has {size} bytes: {name[:80]!r}...; the limit is "
            f"{PATH_BYTES_LIMIT}"
        )
    parts = name.split("/")
    if len(parts) > DEPTH_LIMIT:
        raise LibraryLoadError(
            f"{filename} has a file in {len(parts) - 1} folders: {name[:80]!r}...; the limit is "
            f"{DEPTH_LIMIT - 1}"
        )
    longest = max(len(part.encode(errors="replace")) for part in parts)
    if longest > PART_BYTES_LIMIT:
        raise LibraryLoadError(
            f"{filename} has a file or folder whose name has {longest} bytes: {name[:80]!r}...; "
            f"the limit is {PART_BYTES_LIMIT}"
        )


def _check_duplicates(members: list[zipfile.ZipInfo], filename: str) -> None:
    # Names are compared as by a file system that ignores case and the encoding of accents.
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for member in members:
        path = PurePosixPath(member.filename)
        above = [path, *path.parents] if member.is_dir() else path.parents
        for folder in above:
            _note(folders, str(folder), filename)
        if member.is_dir():
            continue
        if _folded(str(path)) in files:
            _note(files, str(path), filename)
            raise LibraryLoadError(f"{filename} has the file {member.filename[:200]!r} twice")
        files[_folded(str(path))] = str(path)
    for folded in files.keys() & folders.keys():
        raise LibraryLoadError(f"{filename} has {files[folded][:200]!r} as a file and as a folder")


def _note(seen: dict[str, str], path: str, filename: str) -> None:
    before = seen.setdefault(_folded(path), path)
    if before != path:
        raise LibraryLoadError(
            f"{filename} has two names that differ in nothing but capitals or accents: "
            f"{before[:200]!r} and {path[:200]!r}"
        )


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


def _check_sizes(members: list[zipfile.ZipInfo], archive_bytes: int, filename: str) -> None:
    largest = max(members, key=lambda member: member.file_size, default=None)
    if largest is None:
        return
    unpacked = sum(member.file_size for member in members)
    which = f"the largest of its files is {largest.filename[:200]!r}"
    if unpacked > UNPACKED_BYTES_LIMIT:
        raise LibraryLoadError(
            f"{filename} unpacks to {unpacked} bytes; the limit is {UNPACKED_BYTES_LIMIT}; {which}"
        )
    if unpacked > max(RATIO_MATTERS_FROM, RATIO_LIMIT * archive_bytes):
        raise LibraryLoadError(
            f"{filename} unpacks to {unpacked} bytes, {unpacked // max(archive_bytes, 1)} times "
            f"its own size; the limit is {RATIO_LIMIT} times; {which}",
            hint="files that are as compressible as that can be stored in it uncompressed",
        )
    if sum(member.compress_size for member in members) > archive_bytes:
        raise LibraryLoadError(f"{filename} has files that overlap each other; {which}")
