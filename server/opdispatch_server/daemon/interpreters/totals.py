"""The counters of all interpreters since the start, and how interpreters ended."""

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
from opdispatch_server.metrics.client_calls import process_client_calls, sum_calls
from opdispatch_server.metrics.label_limits import LONGEST_CLIENT, MOST_CLIENTS, add_calls
from opdispatch_wire.v1 import interpreter_pb2 as pb

MOST_PAST_SERIES = 16384
"""The most series of past interpreters that the daemon keeps."""
# Processes that have lost their connection, and may reconnect.
_MOST_PARTED = 64
# Processes that have ended, whose counters are still to be added up. Adding needs NumPy, which a
# daemon that is never asked for sums does not load.
_MOST_ENDED = 16
DEATHS_KEPT = 32


class InterpreterDeath(NamedTuple):
    """The death of an interpreter: an end that was not orderly."""

    interpreter: str
    cause: str
    reason: str
    at: float
    """When, as a time of ``time.time``."""
    running: tuple[str, ...]
    """The operators whose kernels were running."""


class _Source(NamedTuple):
    """The counters of one process, and the record of its running kernels."""

    pid: int
    is_near: bool
    counts: SharedCounts | CountedRows
    flight_record: FlightRecord | None

    @property
    def key(self) -> object:
        """The process's shared memory, or what identifies a process whose memory is not visible."""
        return self.counts.inode if isinstance(self.counts, SharedCounts) else self.counts

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, or is on another machine."""
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
    """Adds up the counters of interpreters.

    Any thread may read; the event loop calls ``begin``, ``note_rows`` and ``end``. A process counts
    from its start to its end, across its sessions: one that has lost its connection goes on
    counting, and keeps its counts when it reconnects. ``_lock`` guards everything.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[InterpreterSession, _Source] = {}
        # Processes whose sessions have ended, by ``_Source.key``.
        self._parted: OrderedDict[object, _Source] = OrderedDict()
        # Metrics of libraries, as heartbeats report them.
        self._metrics: dict[InterpreterSession, Sequence[pb.LibraryMetric]] = {}
        self._clients: dict[InterpreterSession, dict[str, int]] = {}
        self._past_clients: Counter[str] = Counter()
        self._past = CallSums(MOST_PAST_SERIES)
        # Still to be added: counters, and rows of runs that were cut off.
        self._ended: list[tuple[SharedCounts | CountedRows, list[int]]] = []
        self._deaths: Counter[str] = Counter()
        self._recent: deque[InterpreterDeath] = deque(maxlen=DEATHS_KEPT)

    def begin(
        self, session: InterpreterSession, counts: SharedCounts | None, *, is_near: bool
    ) -> None:
        """Add an interpreter with its counters; None: its heartbeats carry them."""
        source = _Source(session.pid, is_near, counts or CountedRows(), session.flight_record)
        with self._lock:
            self._parted.pop(source.key, None)
            self._settle()
            self._live[session] = source

    def note_rows(self, session: InterpreterSession) -> None:
        """Store the rows of its last heartbeat."""
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
        """Record that a session has ended."""
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
        """Return the counts of all calls that have ended, or were cut off, since the start."""
        with self._lock:
            self._settle()
            self._add_up()
            total = self._past.copy()
            sources = [*self._live.values(), *self._parted.values()]
        # Without the lock, which the event loop needs. The memory of a process that ends meanwhile
        # stays readable.
        for source in sources:
            total.add(source.counts.read())
        return total.table

    def near(self) -> set[str]:
        """Return the names of the interpreters whose processes are on this machine."""
        with self._lock:
            return {session.name for session, source in self._live.items() if source.is_near}

    def library_metrics(self) -> dict[str, Sequence[pb.LibraryMetric]]:
        """Return the metrics that libraries define, by interpreter."""
        with self._lock:
            return {session.name: found for session, found in self._metrics.items()}

    def clients(self) -> Counter[str]:
        """Return how many calls each client has sent, to the daemon and to interpreters."""
        with self._lock:
            counts = [dict(self._past_clients), *self._clients.values()]
        return sum_calls([process_client_calls().read(), *counts])

    def running(self) -> dict[str, list[str]]:
        """Return the operators whose kernels are running, by interpreter, if known."""
        with self._lock:
            records = {session.name: source.flight_record for session, source in self._live.items()}
        return {
            name: [f.subject.operator for f in record.running() if f.subject.kind == KERNEL]
            for name, record in records.items()
            if record is not None
        }

    def deaths(self) -> tuple[dict[str, int], list[InterpreterDeath]]:
        """Return the number of deaths by cause, and the latest deaths, newest first."""
        with self._lock:
            return dict(self._deaths), list(reversed(self._recent))

    def _settle(self) -> None:
        """Reduce processes that have ended to their counters."""
        for key, source in list(self._parted.items()):
            ended = source.has_ended
            if ended or len(self._parted) > _MOST_PARTED:
                del self._parted[key]
                record = source.flight_record if ended else None
                flights = record.running() if record is not None else []
                died = [each.counts_row for each in flights if each.subject.kind == KERNEL]
                self._ended.append((source.counts, died))
                if not ended:  # it goes on counting, and may reconnect
                    self._add_up()
        if len(self._ended) > _MOST_ENDED:
            self._add_up()

    def _add_up(self) -> None:
        """Add the counters of ended processes to those of the past."""
        for counts, died in self._ended:
            table = counts.read()
            self._past.add(table)
            for row in died:
                if 0 <= row < len(table.texts):
                    self._past.add(table_of({table.series(row): Counts(died=1)}))
        self._ended.clear()
