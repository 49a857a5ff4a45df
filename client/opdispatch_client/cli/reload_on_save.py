"""``opdispatch load --watch``: reloads a library whenever its file is saved."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from opdispatch.errors import OpdispatchError
from opdispatch_client.cli.exit_codes import CommandError, UsageError, report_failure
from opdispatch_client.cli.output import print_remark
from opdispatch_wire.errors import DaemonUnavailableError

# Editors write a file in several steps; changes within this time count as one.
SETTLE_MILLISECONDS = 50
# How often to check without a notification: for file systems without notifications, and for a
# change between a load and the first check.
LOOK_MILLISECONDS = 500

Stamp = tuple[tuple[str, int, int], ...]


def load_and_watch(source: str, load: Callable[[], None], *, debug: bool) -> None:
    """Load now, and after every change, until Ctrl-C or the daemon is gone.

    Failures are reported, and the next change triggers another attempt. Raises UsageError if there
    is no such file.
    """
    path = Path(os.path.expanduser(source))
    if not os.path.exists(path):
        raise UsageError(f"--watch needs a file or folder; there is no {source!r}")
    changes = watch_path(path)
    print_remark(f"watching {source} (Ctrl-C ends this)")
    for _ in changes:
        try:
            load()
            sys.stdout.flush()
        except DaemonUnavailableError:
            raise
        except (OpdispatchError, OSError) as error:
            report_failure(error, debug=debug)


def watch_path(path: Path) -> Iterator[None]:
    """Yield at once, and after each change of a file, or of anything below a folder.

    Raises CommandError if the package for that is not installed.
    """
    try:
        from watchfiles import watch
    except ModuleNotFoundError as error:
        raise CommandError(
            "--watch needs the package 'watchfiles', which is not installed; "
            "install opdispatch[watch]"
        ) from error
    # A folder is watched even for a file: editors replace the file by a new one.
    events = watch(
        path if path.is_dir() else path.absolute().parent,
        recursive=path.is_dir(),
        watch_filter=None,
        step=SETTLE_MILLISECONDS,
        rust_timeout=LOOK_MILLISECONDS,
        yield_on_timeout=True,
        raise_interrupt=True,
    )
    return _changes(path, events)


def _changes(path: Path, events: Iterator[object]) -> Iterator[None]:
    seen = stamp(path)
    yield
    for _ in events:
        now = stamp(path)
        if now and now != seen:
            seen = now
            yield


def stamp(path: Path) -> Stamp:
    """Return a value that changes with writes to a file, or below a folder; empty if absent."""
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    found = []
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue  # it is just being replaced
        found.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(found)
