"""Places where a process can be made to die, to test that nothing is half done afterwards.

``OPDISPATCH_FAULT=POINT`` has the process that comes to that point first kill itself there, with
SIGKILL: nothing is flushed, closed or told. ``OPDISPATCH_FAULT=POINT=FILE`` does so once: for the
process that finds FILE there and removes it, so that a test can choose the moment, and that a
process that is started again gets past the point.
"""

from __future__ import annotations

import enum
import functools
import os
import signal

VARIABLE = "OPDISPATCH_FAULT"


class FaultPoint(enum.Enum):
    """Every point there is, by the name that the variable uses for it."""

    # The daemon, while it loads, brings back or unloads a library.
    STAGED = "staged"  # the batch has come, nothing is kept of it
    CONTENT_DRAFTED = "content-drafted"  # the upload is on disk, under no name yet
    CONTENT_STORED = "content-stored"  # under its name, but in no journal
    JOURNAL_BEGUN = "journal-begun"  # the change is written, but not committed
    JOURNAL_COMMITTED = "journal-committed"  # committed, and not reported yet
    INTERPRETER_COMMITTED = "interpreter-committed"  # its interpreter publishes, the daemon not
    PUBLISHED = "published"  # the daemon publishes, the other interpreters not
    WITHDRAWN = "withdrawn"  # an unloaded version is out of the registry, and in the interpreters
    BEFORE_ACKNOWLEDGEMENT = "before-acknowledgement"  # all is done, and the caller not answered

    # An interpreter.
    INTERPRETER_STAGED = "interpreter-staged"  # imported, and not answered
    INTERPRETER_PUBLISHED = "interpreter-published"  # published, and not answered
    INTERPRETER_RETIRED = "interpreter-retired"  # let go, and not answered

    # `opdispatch state import`.
    IMPORT_VERIFIED = "import-verified"  # everything is checked and on disk, nothing is in force
    IMPORT_DECIDED = "import-decided"  # it will be in force, but the old journal is in its place
    IMPORT_ASIDE = "import-aside"  # the old journal is out of the way, the new one not in place


def fault_point(point: FaultPoint) -> None:
    """End the process here, if it has been asked for."""
    armed = _armed()
    if armed is not None and armed[0] is point and _is_due(armed[1]):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_due(file: str) -> bool:
    if not file:
        return True
    try:
        os.unlink(file)  # of several that come at once, one succeeds
    except OSError:
        return False
    return True


@functools.cache
def _armed() -> tuple[FaultPoint, str] | None:
    name, _, file = os.environ.get(VARIABLE, "").partition("=")
    return (FaultPoint(name), file) if name else None
