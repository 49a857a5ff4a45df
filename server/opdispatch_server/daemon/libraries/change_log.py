"""Log records of changes to libraries: one function per event, each with the caller's identity."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from opdispatch_server.daemon.libraries.version import LibraryVersion
from opdispatch_server.log_fields import IDENTITY, Event, asked_by, fields

LOG = logging.getLogger("opdispatch.libraries")

_COUNTED: Final = {
    Event.LIBRARY_LOADED: "loaded",
    Event.LIBRARY_REPLACED: "replaced",
    Event.LIBRARY_ROLLED_BACK: "rolled_back",
    Event.LIBRARY_RESTORED: "restored",
    Event.LIBRARY_UNLOADED: "unloaded",
    Event.LIBRARY_SCALED: "scaled",
    Event.LIBRARY_LOAD_FAILED: "load_failed",
}
CHANGES: Final = tuple(_COUNTED.values())
"""The kinds of changes that are counted."""
_so_far: Counter[str] = Counter()


def changes_so_far() -> dict[str, int]:
    """Return how many changes of each of ``CHANGES`` this process has made."""
    return dict(_so_far)


def count_change(event: Event) -> None:
    """Count a change that another module logs."""
    _so_far[_COUNTED[event]] += 1


def log_loaded(version: LibraryVersion, replaced: LibraryVersion | None) -> None:
    """Log that a version was published, replacing ``replaced`` if given."""
    event = Event.LIBRARY_LOADED if replaced is None else Event.LIBRARY_REPLACED
    instead = f", in the place of v{replaced.version}" if replaced else ""
    _log(event, version, f"loaded {version} into {_holder(version)}{instead}{asked_by()}")


def log_rolled_back(version: LibraryVersion, before: LibraryVersion) -> None:
    """Log that ``version`` is active again, and that ``before``, which was active, is kept."""
    _log(
        Event.LIBRARY_ROLLED_BACK,
        version,
        f"rolled {version.name} back from v{before.version} to v{version.version} in "
        f"{_holder(version)}{asked_by()}",
    )


def log_restored(version: LibraryVersion) -> None:
    """Log that a version is served again, after a restart or after it lost its interpreters."""
    message = f"loaded {version} into {_holder(version)} again"
    _log(Event.LIBRARY_RESTORED, version, message)


def log_unloaded(gone: Sequence[LibraryVersion], active: LibraryVersion | None) -> None:
    """Log that versions were unloaded, and which version is active instead."""
    now = f"; {active} is active now" if active else ""
    for version in gone:
        _log(Event.LIBRARY_UNLOADED, version, f"unloaded {version}{now}{asked_by()}")


def log_scaled(version: LibraryVersion) -> None:
    """Log how many interpreters are to hold a version."""
    wanted = version.interpreters_wanted
    _log(
        Event.LIBRARY_SCALED,
        version,
        f"{version} shall be in {wanted} interpreter{'s' if wanted != 1 else ''}{asked_by()}",
    )


def log_replica_joined(version: LibraryVersion, interpreter: str) -> None:
    """Log that one more interpreter holds a version."""
    extra = about(Event.REPLICA_JOINED, version, interpreter)
    LOG.info("interpreter %s joined %s as a replica", interpreter, version, extra=extra)


def about(event: Event, version: LibraryVersion, interpreter: str = "") -> dict[str, object]:
    """Return the fields of a log record about a version."""
    return fields(event, library=version.name, version=version.version, interpreter=interpreter)


def _holder(version: LibraryVersion) -> str:
    return f"interpreter {version.interpreter.name}" if version.interpreter else "no interpreter"


def _log(event: Event, version: LibraryVersion, message: str) -> None:
    count_change(event)
    interpreter = version.interpreter.name if version.interpreter else ""
    extra = about(event, version, interpreter) | fields(event, identity=IDENTITY.get())
    LOG.info("%s", message, extra=extra)
