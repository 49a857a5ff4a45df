"""Profiles of calls in a file: ``opdispatch call --profile FILE``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from opdispatch_client.cli.exit_codes import CommandError, UsageError

if TYPE_CHECKING:
    from opdispatch import profile

_SUFFIXES = (".json", ".json.gz", ".svg")


def check_profile_file(path: Path) -> None:
    """Raise UsageError if the file's suffix is unknown or its folder does not exist."""
    if not path.name.lower().endswith(_SUFFIXES):
        raise UsageError(
            f"{str(path)!r} is not the name of a profile; expected one ending in .json or .json.gz "
            "for a trace, or in .svg for a picture"
        )
    if not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")


def write_profile(prof: profile, path: Path) -> None:
    """Write a trace for Perfetto, or a picture. Raises CommandError if it cannot be written."""
    try:
        if path.suffix.lower() == ".svg":
            prof.export_flame_chart(path)
        else:
            prof.export_chrome_trace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from None
