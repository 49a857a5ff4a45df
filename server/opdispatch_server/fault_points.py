"""Points at which tests make a process die, to show that nothing is left half done.

``OPDISPATCH_FAULT=POINT`` makes the first process that reaches that point kill itself there, with
SIGKILL: nothing is flushed, closed or reported. ``OPDISPATCH_FAULT=POINT=FILE`` does so once: for
the process that finds FILE and removes it, so that a test can choose the moment, and a restarted
process gets past the point.
"""

from __future__ import annotations

import enum
import functools
import os
import signal

VARIABLE = "OPDISPATCH_FAULT"


class FaultPoint(enum.Enum):
    """Every point, by its name in the variable."""

    # In the daemon, while it loads, brings back or unloads a library.
    STAGED = "staged"  # the batch has arrived, nothing is stored
    CONTENT_DRAFTED = "content-drafted"  # the upload is on disk, without a name
    CONTENT_STORED = "content-stored"  # the upload has its name, but no journal refers to it
    JOURNAL_BEGUN = "journal-begun"  # the change is written, but not committed
    JOURNAL_COMMITTED = "journal-committed"  # the change is committed, but not reported
    # the interpreter has published, the daemon has not
    INTERPRETER_COMMITTED = "interpreter-committed"
    PUBLISHED = "published"  # the daemon has published, the other interpreters have not
    # an unloaded version is out of the registry, but still in the interpreters
    WITHDRAWN = "withdrawn"
    # everything is done, but the caller has no reply
    BEFORE_ACKNOWLEDGEMENT = "before-acknowledgement"

    # In an interpreter.
    INTERPRETER_STAGED = "interpreter-staged"  # imported, not yet answered
    INTERPRETER_PUBLISHED = "interpreter-published"  # published, not yet answered
    INTERPRETER_RETIRED = "interpreter-retired"  # released, not yet answered

    # In `opdispatch state import`.
    IMPORT_VERIFIED = "import-verified"  # everything is checked and on disk, nothing is in effect
    IMPORT_DECIDED = "import-decided"  # the import is decided, the old journal still in place
    IMPORT_ASIDE = "import-aside"  # the old journal is moved away, the new one not yet in place


def fault_point(point: FaultPoint) -> None:
    """Kill the process here, if requested."""
    armed = _armed()
    if armed is not None and armed[0] is point and _is_due(armed[1]):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_due(file: str) -> bool:
    if not file:
        return True
    try:
        os.unlink(file)  # of several processes at once, one succeeds
    except OSError:
        return False
    return True


@functools.cache
def _armed() -> tuple[FaultPoint, str] | None:
    name, _, file = os.environ.get(VARIABLE, "").partition("=")
    return (FaultPoint(name), file) if name else None
