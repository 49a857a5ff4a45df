"""``opdispatch state``: export, import and pruning of a daemon's state folder."""

from __future__ import annotations

import enum
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from opdispatch_server.daemon_configuration import default_state_folder
from opdispatch_wire.printable import printable_line, printable_message


class StateAction(enum.StrEnum):
    """The action to take."""

    EXPORT = "export"
    IMPORT = "import"
    PRUNE = "prune"


def state(
    action: Annotated[StateAction, typer.Argument(help="What to do.", show_default=False)],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            dir_okay=False,
            help="The archive to write or to read; - is standard output or input.",
            show_default=False,
        ),
    ] = None,
    state_folder: Annotated[
        Path | None,
        typer.Option(
            "--state",
            metavar="DIR",
            file_okay=False,
            help="The daemon's state folder. Default: $XDG_STATE_HOME/opdispatch, else "
            "~/.local/state/opdispatch.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only list what `prune` would remove.", show_default=False),
    ] = False,
) -> None:
    """Back up or restore the libraries of a daemon, or remove files that none of them needs.

    `state export FILE` writes the journal and the uploads that it names, with their hashes; a
    daemon may be running. The others are refused while one uses the folder. `state import FILE`
    replaces the state that is there, once everything has been checked, and keeps the old journal
    beside it. `state prune` removes the uploads and the environments that no library needs, neither
    of the journal nor of one kept beside it. It says how large each environment is and what it
    serves; with --dry-run, it removes nothing.
    """
    from opdispatch.errors import OpdispatchError

    if (file is None) != (action is StateAction.PRUNE):
        wants = "takes no file" if file else "takes a file"
        raise typer.BadParameter(f"{action.value} {wants}", param_hint="'[FILE]'")
    if dry_run and action is not StateAction.PRUNE:
        raise typer.BadParameter("it is for `prune`", param_hint="'--dry-run'")
    folder = state_folder or default_state_folder()
    try:
        if file is None:
            _prune(folder, dry_run=dry_run)
        else:
            with _as_file(action, file) as archive:
                _archive(action, archive, folder, is_stream=archive != file)
    except (OpdispatchError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename or file or folder}: {error.strerror}"
        print(f"opdispatch: {printable_message(message)}", file=sys.stderr)
        raise typer.Exit(1) from error


@contextmanager
def _as_file(action: StateAction, file: Path) -> Iterator[Path]:
    """Return the archive as a file.

    A temporary one for a stream, since it is checked as a whole.
    """
    if file != Path("-"):
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "state.zip"
        if action is StateAction.IMPORT:
            with archive.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        yield archive
        if action is StateAction.EXPORT:
            with archive.open("rb") as copy:
                shutil.copyfileobj(copy, sys.stdout.buffer)
            sys.stdout.buffer.flush()


def _archive(action: StateAction, file: Path, folder: Path, *, is_stream: bool) -> None:
    from opdispatch_server.daemon.state.archive import export_state, import_state

    if action is StateAction.EXPORT:
        summary = export_state(folder, file)
    else:
        summary = import_state(file, folder)
    # The archive may go to standard output.
    said = sys.stderr if is_stream and action is StateAction.EXPORT else sys.stdout
    print(
        f"{action.value}ed {_count(summary.libraries, 'library', 'libraries')} with "
        f"{_count(summary.contents, 'upload', 'uploads')}, up to event {summary.last_event}",
        file=said,
    )
    if summary.replaced:
        print(f"the journal before is in {summary.replaced}")


def _prune(folder: Path, *, dry_run: bool) -> None:
    from opdispatch_server.daemon.state.unused_environments import remove_unused_environments
    from opdispatch_server.daemon.state.unused_uploads import remove_unused_uploads

    environments = remove_unused_environments(folder, dry_run=dry_run)
    uploads = remove_unused_uploads(folder, dry_run=dry_run)
    removed = "would remove" if dry_run else "removed"
    for each in environments:
        what = f"serves {', '.join(each.serves)}" if each.serves else f"serves nothing: {removed}"
        print(printable_line(f"environment {each.key[:8]} ({_size(each.size)}) {what}"))
    unused = [each for each in environments if not each.serves]
    if environments:
        print(
            f"{removed} {_count(len(unused), 'environment', 'environments')} "
            f"({_size(sum(each.size for each in unused))}), kept {len(environments) - len(unused)}"
        )
    print(
        f"{removed} {_count(uploads.removed, 'upload', 'uploads')} "
        f"({_size(uploads.freed_bytes)}), kept {uploads.kept}"
    )


def _size(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return _count(size, "byte", "bytes")


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
