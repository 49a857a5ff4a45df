"""Which files of a zip archive may be read: the rest is refused before anything is unpacked."""

from __future__ import annotations

import stat
import zipfile
from pathlib import PurePosixPath, PureWindowsPath

from opdispatch_wire.errors import LibraryLoadError

MEMBERS_LIMIT = 10_000
UNPACKED_BYTES_LIMIT = 512 * 1024 * 1024
# Sources shrink to a quarter. Beyond this, and beyond the size where it would matter, an
# archive is one that was made to fill the memory.
RATIO_LIMIT = 100
RATIO_MATTERS_FROM = 32 * 1024 * 1024
# What the others need to be unpacked (dictionaries of gigabytes) is up to the archive.
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflated"}
_ENCRYPTED = 0x1


def list_members(
    archive: zipfile.ZipFile, archive_bytes: int, filename: str
) -> list[zipfile.ZipInfo]:
    """The files in ``archive``, which is ``archive_bytes`` long; folders are left out.

    Sizes are those that the archive declares; reading a member stops there. Raises
    LibraryLoadError if there is anything in it that should not be.
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
    # zipfile cuts the name at a NUL, so that what one sees is not what another tool unpacks.
    name = member.orig_filename
    windows, posix = PureWindowsPath(name), PurePosixPath(name)
    if "\0" in name or not name.isprintable():
        raise LibraryLoadError(
            f"{filename} has a file whose name has control characters: {name[:200]!r}"
        )
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


def _check_duplicates(members: list[zipfile.ZipInfo], filename: str) -> None:
    seen: set[PurePosixPath] = set()
    for member in members:
        path = PurePosixPath(member.filename)
        if path in seen and not member.is_dir():
            raise LibraryLoadError(f"{filename} has the file {member.filename[:200]!r} twice")
        seen.add(path)


def _check_sizes(members: list[zipfile.ZipInfo], archive_bytes: int, filename: str) -> None:
    unpacked = sum(member.file_size for member in members)
    if unpacked > UNPACKED_BYTES_LIMIT:
        raise LibraryLoadError(
            f"{filename} unpacks to {unpacked} bytes; the limit is {UNPACKED_BYTES_LIMIT}"
        )
    if unpacked > max(RATIO_MATTERS_FROM, RATIO_LIMIT * archive_bytes):
        raise LibraryLoadError(
            f"{filename} unpacks to {unpacked} bytes, {unpacked // max(archive_bytes, 1)} times "
            f"its own size; the limit is {RATIO_LIMIT} times"
        )
    if sum(member.compress_size for member in members) > archive_bytes:
        raise LibraryLoadError(f"{filename} has files that overlap each other")
