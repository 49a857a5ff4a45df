"""The calls that end from one look to the next."""

from __future__ import annotations

import pytest

from opdispatch_server.daemon.interpreters.call_activity import CallActivity, quantile
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.metrics.call_counts import RUN_BOUNDS, Series
from opdispatch_server.metrics.call_table import CallTable, Counts, table_of
from opdispatch_wire.v1 import registry_pb2 as pb


def buckets(**counts: int) -> list[int]:
    found = [0] * (len(RUN_BOUNDS) + 1)
    for place, count in counts.items():
        found[int(place[1:])] = count
    return found


@pytest.mark.parametrize(
    ("share", "counts", "seconds"),
    [
        (0.5, buckets(), 0.0),
        (0.5, buckets(b0=10), RUN_BOUNDS[0] / 2),
        (0.5, buckets(b0=1, b3=1), RUN_BOUNDS[0]),
        (0.99, buckets(b2=100), RUN_BOUNDS[1] + 0.99 * (RUN_BOUNDS[2] - RUN_BOUNDS[1])),
        (0.99, buckets(b12=1), RUN_BOUNDS[-1]),
    ],
)
def test_quantiles_are_those_of_prometheus(share: float, counts: list[int], seconds: float):
    assert quantile(share, counts) == pytest.approx(seconds)


def test_first_look_has_no_interval():
    activity = CallActivity(InterpreterTotals(), lambda: True)
    interpreter = pb.Interpreter(name="worker-1", calls_queued=3)
    first, second = activity.look([interpreter]), activity.look([])
    assert first.interval == 0 < second.interval
    assert first.ready
    assert [(each.name, each.calls_queued) for each in first.interpreters] == [("worker-1", 3)]
    activity.forget()
    assert activity.look([]).interval == 0


class Totals(InterpreterTotals):
    """Those of a daemon whose calls are ``table``."""

    table: CallTable

    def read(self) -> CallTable:
        """Return it."""
        return self.table


def test_a_look_lists_what_has_ended_since_the_last_one_the_longest_first():
    totals = Totals()
    a, b, c = (Series(f"lib::{name}", "CPU", "lib", "1") for name in "abc")
    totals.table = table_of({a: Counts(ok=5, run_ns=500), b: Counts(ok=9, run_ns=900)})
    activity = CallActivity(totals, lambda: True)
    first = activity.look([])
    assert [each.operator for each in first.calls] == ["lib::b", "lib::a"]
    totals.table = table_of(
        # That of b was taken by another series: it seems to be less.
        {c: Counts(died=1, run_ns=3), b: Counts(ok=2), a: Counts(ok=6, failed=1, run_ns=700)}
    )
    second = activity.look([])
    assert [(e.operator, e.ok, e.failed, e.died) for e in second.calls] == [
        ("lib::a", 1, 1, 0),
        ("lib::c", 0, 0, 1),
    ]
    assert (second.total.ok, second.since_start.ok) == (1, 8)
    assert not activity.look([]).calls
