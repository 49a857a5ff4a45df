"""The calls that end from one look to the next."""

from __future__ import annotations

import pytest

from opdispatch_server.daemon.interpreters.call_activity import CallActivity, quantile
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.metrics.call_counts import RUN_BOUNDS
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
