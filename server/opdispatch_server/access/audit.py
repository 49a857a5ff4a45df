"""The audit log: one record for each change, with its identity, its object and its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from opdispatch.errors import OpdispatchError
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.logs import AUDIT_LOG

LOG = logging.getLogger(AUDIT_LOG)

DONE = "done"


@contextmanager
def audited(action: str, who: str, *, library: str = "", interpreter: str = "") -> Iterator[None]:
    """Log the outcome of the block, which carries out ``action`` for the identity ``who``.

    The outcome is "done", or the code of the error that the block raises.
    """
    outcome = DONE
    try:
        yield
    except OpdispatchError as error:
        outcome = error.code
        raise
    except asyncio.CancelledError:
        outcome = "cancelled"
        raise
    except BaseException as error:
        outcome = f"internal ({type(error).__name__})"
        raise
    finally:
        note(action, who, outcome, library=library, interpreter=interpreter)


def note(
    action: str, who: str, outcome: str = DONE, *, library: str = "", interpreter: str = ""
) -> None:
    """Log one action with its outcome."""
    about = " ".join(filter(None, (action, library or interpreter)))
    extra = fields(
        Event.AUDIT,
        library=library,
        interpreter=interpreter,
        identity=who,
        action=action,
        outcome=outcome,
    )
    LOG.info("%s by %s: %s", about, who, outcome, extra=extra)
