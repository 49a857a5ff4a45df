"""The work of interpreters and the calls that end, from one look at them to the next."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.metrics.call_counts import NOTHING, RUN_BOUNDS, Counts, Series
from opdispatch_wire.v1 import registry_pb2 as pb

MOST_CALLS: Final = 100
"""How many kinds of calls are listed by themselves."""
MOST_CLIENTS: Final = 20


class CallActivity:
    """Compares the counts of calls with those of the last look. For one thread at a time."""

    def __init__(self, totals: InterpreterTotals, is_ready: Callable[[], bool]) -> None:
        self._totals = totals
        self._is_ready = is_ready
        self._before: Mapping[Series, Counts] = {}
        self._sent: Counter[str] = Counter()
        self._at: float | None = None

    def forget(self) -> None:
        """Begin anew: the next look has all calls since the start."""
        self._before, self._sent, self._at = {}, Counter(), None

    def look(self, interpreters: Iterable[pb.Interpreter]) -> pb.Activity:
        """Return what has happened since the last look."""
        now, counts = time.monotonic(), self._totals.read()
        before, self._before = self._before, counts
        began, self._at = self._at, now
        new = {series: _less(each, before.get(series)) for series, each in counts.items()}
        new = {series: each for series, each in new.items() if each.ok or each.failed or each.died}
        longest = heapq.nlargest(MOST_CALLS, new.items(), key=lambda item: item[1].run_ns)
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
            calls=[_calls(series, each) for series, each in longest],
            total=_calls(Series(""), sum(new.values(), NOTHING)),
            deaths=self._deaths(),
            clients=[
                pb.ClientCalls(client=client, calls=calls)
                for client, calls in sent.most_common(MOST_CLIENTS)
            ],
            since_start=_calls(Series(""), sum(counts.values(), NOTHING)),
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


def _less(counts: Counts, before: Counts | None) -> Counts:
    """Return what has been added; what seems to have become less is that of another series."""
    if before is None or before is NOTHING:
        return counts
    if counts is before:
        return NOTHING
    ok, failed, run, queue, given, returned, runs, queues, died = counts
    return Counts(
        max(ok - before.ok, 0),
        max(failed - before.failed, 0),
        max(run - before.run_ns, 0),
        max(queue - before.queue_ns, 0),
        max(given - before.argument_bytes, 0),
        max(returned - before.result_bytes, 0),
        tuple(max(a - b, 0) for a, b in zip(runs, before.run_buckets, strict=True)),
        tuple(max(a - b, 0) for a, b in zip(queues, before.queue_buckets, strict=True)),
        max(died - before.died, 0),
    )


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
    """Return the seconds within which a share of calls took, as ``histogram_quantile`` has it.

    Within its bucket it is linear. Beyond the last bound it is that; 0 without calls.
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
