"""The activity of interpreters: the calls that ended between two looks at the counters."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.metrics.call_counts import RUN_BOUNDS, Series
from opdispatch_server.metrics.call_table import (
    DIED,
    FAILED,
    OK,
    RUN_NS,
    CallTable,
    Counts,
    Numbers,
    no_calls,
)
from opdispatch_wire.v1 import registry_pb2 as pb

MOST_CALLS: Final = 100
"""The most series listed individually."""
MOST_CLIENTS_LISTED: Final = 20
"""The most clients listed individually, the busiest ones."""


class CallActivity:
    """Compares the counters of calls with their previous values. For one thread at a time."""

    def __init__(self, totals: InterpreterTotals, is_ready: Callable[[], bool]) -> None:
        self._totals = totals
        self._is_ready = is_ready
        self._before: CallTable | None = None
        self._sent: Counter[str] = Counter()
        self._at: float | None = None

    def forget(self) -> None:
        """Start over: the next look counts all calls since the start."""
        self._before, self._sent, self._at = None, Counter(), None

    def look(self, interpreters: Iterable[pb.Interpreter]) -> pb.Activity:
        """Return what has happened since the previous look."""
        now, table = time.monotonic(), self._totals.read()
        new = _less(table, no_calls() if self._before is None else self._before)
        self._before = table
        began, self._at = self._at, now
        ended = new[:, OK] + new[:, FAILED] + new[:, DIED]
        longest = np.argsort(new[:, RUN_NS])[::-1]
        longest = longest[ended[longest] > 0][:MOST_CALLS]
        running = self._totals.running()
        clients = self._totals.clients()
        sent, self._sent = clients - self._sent, clients
        return pb.Activity(
            interval=now - began if began is not None else 0.0,
            ready=self._is_ready(),
            interpreters=[
                pb.InterpreterActivity(
                    name=each.name,
                    running=running.get(each.name, ()),
                    calls_in_flight=each.calls_in_flight,
                    calls_queued=each.calls_queued,
                    bytes_queued=each.bytes_queued,
                    calls_total=each.calls_total,
                )
                for each in interpreters
            ],
            calls=[_calls(table.series(row), Counts.of(new[row])) for row in longest.tolist()],
            total=_calls(Series(""), Counts.of(new.sum(axis=0))),
            deaths=self._deaths(),
            clients=[
                pb.ClientCalls(client=client, calls=calls)
                for client, calls in sent.most_common(MOST_CLIENTS_LISTED)
            ],
            since_start=_calls(Series(""), Counts.of(table.numbers.sum(axis=0))),
        )

    def _deaths(self) -> list[pb.InterpreterDeath]:
        found = []
        for each in self._totals.deaths()[1]:
            death = pb.InterpreterDeath(
                interpreter=each.interpreter,
                cause=each.cause,
                reason=each.reason,
                running=each.running,
            )
            death.at.FromNanoseconds(int(each.at * 1e9))
            found.append(death)
        return found


def _less(table: CallTable, before: CallTable) -> Numbers:
    """Return the increase; a counter that decreased belongs to a new series."""
    rows = {text: row for row, text in enumerate(before.texts)}
    at = np.array([rows.get(each, len(rows)) for each in table.texts], np.intp)
    old = np.pad(before.numbers, ((0, 1), (0, 0)))[at]  # the last row is for new series
    return np.where(table.numbers > old, table.numbers - old, np.uint64(0))


def _calls(series: Series, counts: Counts) -> pb.CallActivity:
    ended = max(counts.ok + counts.failed, 1)
    return pb.CallActivity(
        operator=series.operator,
        key=series.key,
        library=series.library,
        version=series.version,
        ok=counts.ok,
        failed=counts.failed,
        died=counts.died,
        run_mean=counts.run_ns / ended / 1e9,
        run_p99=quantile(0.99, counts.run_buckets),
        queue_mean=counts.queue_ns / ended / 1e9,
        queue_p99=quantile(0.99, counts.queue_buckets),
    )


def quantile(share: float, buckets: Sequence[int]) -> float:
    """Return the quantile of call durations, in seconds, as ``histogram_quantile`` defines it.

    Interpolates linearly within a bucket. Beyond the last bound it returns that bound; without
    calls, 0.
    """
    rank = share * sum(buckets)
    bounds = (0.0, *RUN_BOUNDS)
    for place, reached in enumerate(accumulate(buckets)):
        if rank and reached >= rank and buckets[place]:
            if place == len(RUN_BOUNDS):
                break
            part = (rank - (reached - buckets[place])) / buckets[place]
            return bounds[place] + part * (bounds[place + 1] - bounds[place])
    return RUN_BOUNDS[-1] if rank else 0.0
