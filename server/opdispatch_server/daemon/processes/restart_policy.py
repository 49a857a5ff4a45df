"""Decide whether and when to restart an interpreter: pauses that double, then quarantine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opdispatch_server.device_discovery import NO_DEVICE_STATUS

FIRST_PAUSE = 0.1
SHORTEST_PAUSE = 0.01
LONGEST_PAUSE = 10.0
# An interpreter that has never been ready is started at most this often in a row.
START_ATTEMPTS = 5
# An interpreter that was ready for this long had no trouble starting: its successor starts at once.
HEALTHY_AFTER = 3.0


class WorkerEnd(NamedTuple):
    """The end of a process: its description, time and exit status, None if it never started."""

    how: str
    at: float
    status: int | None


@dataclass(slots=True)
class WorkerRecord:
    """The state of one name, across the processes that had it."""

    restarts: int = 0
    # Seconds before the next restart, if the process dies early again.
    pause: float = FIRST_PAUSE
    # Consecutive deaths, each before the process had been ready for a while.
    early_deaths: int = 0
    # Why it is not restarted, in words; empty while it is.
    quarantine: str = ""
    # The last output lines of the process that ended most recently.
    tail: Sequence[str] = ()
    # Whether a process of this name found its device.
    was_ready: bool = False
    # When the current process became ready, and whether the daemon is ending it.
    ready_at: float | None = None
    excused: bool = False
    quarantined: asyncio.Event = field(default_factory=asyncio.Event)
    revived: asyncio.Event = field(default_factory=asyncio.Event)
    # It is to end for good.
    dismissed: asyncio.Event = field(default_factory=asyncio.Event)


def pause_after(record: WorkerRecord, end: WorkerEnd) -> float:
    """Count a death; return how many seconds to pause before the restart."""
    is_healthy = record.ready_at is not None and end.at - record.ready_at > HEALTHY_AFTER
    if is_healthy:
        record.early_deaths = 0
    if is_healthy or record.excused:
        pause = SHORTEST_PAUSE
    else:
        pause = max(record.pause, FIRST_PAUSE)
        record.early_deaths += 1
    record.pause = min(2 * pause, LONGEST_PAUSE)
    return pause


def why_not_again(record: WorkerRecord, end: WorkerEnd, limit: int | None) -> str:
    """Return why a process that ended this way is quarantined; "" if it is restarted.

    ``limit`` is how many early deaths in a row suffice; 0 for none, None for the default.
    """
    if limit is None:
        # A process that was ready once can be ready again: it is restarted without limit, with
        # pauses.
        limit = 0 if record.was_ready else START_ATTEMPTS
    if not limit:
        return ""
    if end.status == NO_DEVICE_STATUS and not record.was_ready and record.tail:
        # the device will not be there the next time either
        return record.tail[-1].removeprefix("ERROR ")
    if record.early_deaths < limit:
        return ""
    return (
        f"it died {record.early_deaths} times in a row soon after its start; the last time it "
        f"{end.how}"
    )
