"""The counts of all interpreters there have been, and how they came to their ends."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import NamedTuple

from opdispatch_server.blame.flight_record import KERNEL, FlightRecord
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.metrics.call_table import (
    CallSums,
    CallTable,
    CountedRows,
    Counts,
    SharedCounts,
    table_of,
)
from opdispatch_server.metrics.client_calls import (
    LONGEST_CLIENT,
    MOST_CLIENTS,
    add_calls,
    process_client_calls,
    sum_calls,
)
from opdispatch_wire.v1 import interpreter_pb2 as pb

MOST_SERIES = 16384
"""How many series the daemon remembers of interpreters that have gone."""
# Processes that have lost their connection, and may come back with it.
_MOST_PARTED = 64
# Processes that have ended, whose counts wait to be added up: that takes NumPy, which a daemon that
# is never asked for sums need not load.
_MOST_ENDED = 16
DEATHS_KEPT = 32


class InterpreterDeath(NamedTuple):
    """The end of an interpreter that was no orderly one."""

    interpreter: str
    cause: str
    reason: str
    at: float
    """A time of ``time.time``."""
    running: tuple[str, ...]
    """The operators whose kernels were running."""


class _Source(NamedTuple):
    """The counts of one process, and the record of its running kernels."""

    pid: int
    is_near: bool
    counts: SharedCounts | CountedRows
    flight_record: FlightRecord | None

    @property
    def key(self) -> object:
        """The memory of the process, or what is known of one that cannot be seen."""
        return self.counts.inode if isinstance(self.counts, SharedCounts) else self.counts

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or is on another machine."""
        if not self.is_near:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False


class InterpreterTotals:
    """Adds up what interpreters count. Any thread may read; the event loop says who comes and goes.

    A process counts from its start to its end, whatever becomes of its sessions: one that has lost
    its connection goes on counting, and comes back with what it had. ``_lock`` guards everything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[InterpreterSession, _Source] = {}
        # Those whose sessions have ended, by ``_Source.key``.
        self._parted: OrderedDict[object, _Source] = OrderedDict()
        # Of libraries' own, as heartbeats tell them.
        self._metrics: dict[InterpreterSession, Sequence[pb.LibraryMetric]] = {}
        self._clients: dict[InterpreterSession, dict[str, int]] = {}
        self._past_clients: Counter[str] = Counter()
        self._past = CallSums(MOST_SERIES)
        # Not added yet: counts, and the rows of what was running.
        self._ended: list[tuple[SharedCounts | CountedRows, list[int]]] = []
        self._deaths: Counter[str] = Counter()
        self._recent: deque[InterpreterDeath] = deque(maxlen=DEATHS_KEPT)

    def begin(
        self, session: InterpreterSession, counts: SharedCounts | None, *, is_near: bool
    ) -> None:
        """Take in an interpreter with its counts; None: its heartbeats have them."""
        source = _Source(session.pid, is_near, counts or CountedRows(), session.flight_record)
        with self._lock:
            self._parted.pop(source.key, None)
            self._settle()
            self._live[session] = source

    def note_rows(self, session: InterpreterSession) -> None:
        """Take in what its last heartbeat says."""
        if session.heartbeat.library_metrics:
            with self._lock:
                self._metrics[session] = session.heartbeat.library_metrics
        clients = session.heartbeat.clients
        if clients:
            with self._lock:
                found = {
                    each.client[:LONGEST_CLIENT]: each.calls for each in clients[: MOST_CLIENTS + 1]
                }
                self._clients[session] = found
        source = self._live.get(session)
        if source is not None and isinstance(source.counts, CountedRows):
            for row in session.heartbeat.call_counts:
                source.counts.put(row.row, row.words)

    def end(self, session: InterpreterSession) -> None:
        """Take in that a session has ended."""
        with self._lock:
            self._metrics.pop(session, None)
            for client, calls in self._clients.pop(session, {}).items():
                add_calls(self._past_clients, client, calls)
            source = self._live.pop(session, None)
            if source is None:
                return
            if (cause := session.cause.name.lower()) != "orderly":
                record = source.flight_record
                running = [f.subject for f in record.running()] if record else []
                operators = tuple(s.operator for s in running if s.kind == KERNEL)
                self._deaths[cause] += 1
                self._recent.append(
                    InterpreterDeath(session.name, cause, session.reason, time.time(), operators)
                )
            self._parted[source.key] = source
            self._settle()

    def read(self) -> CallTable:
        """Return the counts of all calls that have ended, or been cut off, since the start."""
        with self._lock:
            self._settle()
            self._add_up()
            total = self._past.copy()
            sources = [*self._live.values(), *self._parted.values()]
        # Without the lock, which the event loop takes. What ends meanwhile can still be read.
        for source in sources:
            total.add(source.counts.read())
        return total.table

    def near(self) -> set[str]:
        """Return the names of the interpreters whose processes are on this machine."""
        with self._lock:
            return {session.name for session, source in self._live.items() if source.is_near}

    def library_metrics(self) -> dict[str, Sequence[pb.LibraryMetric]]:
        """Return the metrics of libraries' own, by interpreter."""
        with self._lock:
            return {session.name: found for session, found in self._metrics.items()}

    def clients(self) -> Counter[str]:
        """Return how many calls each client has sent to the daemon, and to interpreters."""
        with self._lock:
            counts = [dict(self._past_clients), *self._clients.values()]
        return sum_calls([process_client_calls().read(), *counts])

    def running(self) -> dict[str, list[str]]:
        """Return the operators whose kernels run now, by interpreter whose memory can be seen."""
        with self._lock:
            records = {session.name: source.flight_record for session, source in self._live.items()}
        return {
            name: [f.subject.operator for f in record.running() if f.subject.kind == KERNEL]
            for name, record in records.items()
            if record is not None
        }

    def deaths(self) -> tuple[dict[str, int], list[InterpreterDeath]]:
        """Return how many interpreters have died of each cause; and the latest, the last first."""
        with self._lock:
            return dict(self._deaths), list(reversed(self._recent))

    def _settle(self) -> None:
        """Keep of those whose processes have ended no more than what they have counted."""
        for key, source in list(self._parted.items()):
            ended = source.has_ended
            if ended or len(self._parted) > _MOST_PARTED:
                del self._parted[key]
                record = source.flight_record if ended else None
                flights = record.running() if record is not None else []
                died = [each.counts_row for each in flights if each.subject.kind == KERNEL]
                self._ended.append((source.counts, died))
                if not ended:  # it goes on counting, and may come back
                    self._add_up()
        if len(self._ended) > _MOST_ENDED:
            self._add_up()

    def _add_up(self) -> None:
        """Add what ended processes have counted to the past."""
        for counts, died in self._ended:
            table = counts.read()
            self._past.add(table)
            for row in died:
                if 0 <= row < len(table.texts):
                    self._past.add(table_of({table.series(row): Counts(died=1)}))
        self._ended.clear()
