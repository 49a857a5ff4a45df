"""The fields of log records and their meanings.

A record of opdispatch names what happened in ``event``, and what it concerns in other fields:

    LOG.info("loaded %s", version, extra=fields(Event.LIBRARY_LOADED, library=version.name))

They are attributes of the LogRecord, as ``extra=`` makes them, so any handler or formatter has
them. A field that does not apply is absent. No field may contain a secret: no argument or result of
a call, and not the number of a kernel's run (``CallContext.run``).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

FIELDS: Final = (
    "event",  # an Event
    "operator",  # "namespace::name.overload"
    "library",
    "version",  # a number
    "interpreter",
    "call",  # the id of its request, unique among the calls in flight of one connection
    "trace",  # the id of the distributed trace that it belongs to
    "identity",  # who asked
    "action",  # what they asked for
    "outcome",  # the outcome: "done", or the code of an error
    "queue_seconds",  # how long a call was queued, in the daemon and in its interpreter
    "kernel_seconds",  # how long its kernel ran, including nested calls
    "nested_seconds",  # how much of that it waited for nested calls in other processes
    "exception",  # the class of the error
    "left_out",  # how many similar records were left out before it
)
"""In the order in which they are written."""

TRACEBACK: Final = "traceback"
"""An attribute with the text of a traceback, if there is no ``exc_info``."""


class Event(enum.StrEnum):
    """The kind of event: stable, for programs; the message is for people."""

    LIBRARY_LOADED = "library_loaded"
    LIBRARY_REPLACED = "library_replaced"
    LIBRARY_ROLLED_BACK = "library_rolled_back"
    LIBRARY_RESTORED = "library_restored"
    LIBRARY_UNLOADED = "library_unloaded"
    LIBRARY_SCALED = "library_scaled"
    LIBRARY_LOAD_FAILED = "library_load_failed"
    LIBRARY_FAILED = "library_failed"
    ON_UNLOAD_FAILED = "on_unload_failed"
    REPLICA_JOINED = "replica_joined"
    REPLICA_FAILED = "replica_failed"
    PRIMARY_CHANGED = "primary_changed"
    INTERPRETER_READY = "interpreter_ready"
    INTERPRETER_ENDED = "interpreter_ended"
    INTERPRETER_QUARANTINED = "interpreter_quarantined"
    INTERPRETER_REVIVED = "interpreter_revived"
    INTERPRETER_DRAINING = "interpreter_draining"
    INTERPRETER_IN_USE = "interpreter_in_use"
    INTERPRETER_FAILED = "interpreter_failed"
    INTERPRETER_BUSY = "interpreter_busy"
    INTERPRETER_UNFIT = "interpreter_unfit"
    OPERATOR_BLAMED = "operator_blamed"
    LIBRARY_APART = "library_apart"
    LIBRARY_CLEARED = "library_cleared"
    INTERPRETER_OUTPUT = "interpreter_output"
    KERNEL_ERROR = "kernel_error"
    SLOW_CALL = "slow_call"
    TRACING_FAILED = "tracing_failed"
    DEVICE_LOST = "device_lost"
    VALUE_BY_HOST = "value_by_host"
    LANE_CLOSED = "lane_closed"
    LANE_SLOW = "lane_slow"
    ADDRESS_OPEN = "address_open"
    CONNECTION_REFUSED = "connection_refused"
    CALLS_CUT_OFF = "calls_cut_off"
    ENVIRONMENT_FAILED = "environment_failed"
    JOURNAL_FAILED = "journal_failed"
    CONFIGURATION_READ = "configuration_read"
    CONFIGURATION_REFUSED = "configuration_refused"
    AUDIT = "audit"
    ACCESS_REFUSED = "access_refused"
    CERTIFICATE_READ = "certificate_read"
    CERTIFICATE_REFUSED = "certificate_refused"
    TOKENS_REFUSED = "tokens_refused"
    SERVICE_MANAGER_LOST = "service_manager_lost"
    DAEMON_STOPPING = "daemon_stopping"
    TAKE_OVER_BEGUN = "take_over_begun"
    TAKE_OVER_FAILED = "take_over_failed"
    DAEMON_LOST = "daemon_lost"
    DAEMON_MET = "daemon_met"
    INTERNAL_ERROR = "internal_error"


IDENTITY: ContextVar[str] = ContextVar("opdispatch_identity", default="")
"""The identity on whose behalf this task runs; empty for the daemon's own work."""


def asked_by() -> str:
    """Return who asked for what this task does, as the end of a message."""
    identity = IDENTITY.get()
    return f", asked by {identity}" if identity else ""


def fields(
    event: Event,
    *,
    operator: str = "",
    library: str = "",
    version: int = 0,
    interpreter: str = "",
    call: int = 0,
    trace: str = "",
    identity: str = "",
    action: str = "",
    outcome: str = "",
    exception: str = "",
    left_out: int = 0,
    traceback: str = "",
) -> dict[str, object]:
    """Return the ``extra`` of a record; empty fields and zeros are left out."""
    given: dict[str, object] = {
        "operator": operator,
        "library": library,
        "version": version,
        "interpreter": interpreter,
        "call": call,
        "trace": trace,
        "identity": identity,
        "action": action,
        "outcome": outcome,
        "exception": exception,
        "left_out": left_out,
        TRACEBACK: traceback,
    }
    return {"event": event.value, **{name: value for name, value in given.items() if value}}


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the fields that a record has, by name."""
    for name in FIELDS:
        value = getattr(record, name, None)
        if isinstance(value, str | int | float) and value != "":
            yield name, value


def traceback_of(record: logging.LogRecord) -> str:
    """Return the traceback that a record carries as text; empty if there is none."""
    text = getattr(record, TRACEBACK, "")
    return text if isinstance(text, str) else ""
