"""A table of plans has a bound, whatever its clients say."""

from __future__ import annotations

from typing import NamedTuple

from opdispatch_wire.calls import call_request
from opdispatch_wire.plan_table import MOST_ALIKE, MOST_PLANS, PlanTable
from opdispatch_wire.planned_requests import RequestForm, RequestLayout
from opdispatch_wire.v1 import execution_pb2


class Plan(NamedTuple):
    layout: RequestLayout


def payload_of(operator: str, values: int) -> bytes:
    """A planned request; all of one operator have the same constant bytes."""
    args = [0.5] * values
    form = RequestForm.of(call_request(operator, args, {}), args)
    assert form is not None
    return form.write(args, None, 7)


def plan_of(payload: bytes) -> Plan:
    layout = RequestLayout.of(payload, execution_pb2.CallRequest.FromString(payload))
    assert layout is not None
    return Plan(layout)


def test_a_plan_covers_requests_of_its_layout():
    table: PlanTable[Plan] = PlanTable()
    one, two = payload_of("a::b", 1), payload_of("a::b", 2)
    table.add(plan_of(one))
    assert table.has(one)
    assert not table.has(two)
    assert not table.has(b"")
    table.add(plan_of(two))
    assert table.has(two)
    table.clear()
    assert not table.has(one)


def test_a_full_table_is_emptied():
    table: PlanTable[Plan] = PlanTable()
    plan = plan_of(payload_of("a::b", 1))
    for _ in range(3 * MOST_ALIKE):
        table.add(plan)
    assert [len(alike) for alike in table.plans.values()] == [MOST_ALIKE]
    others = [plan_of(payload_of(f"a::b{n}", 1)) for n in range(MOST_PLANS)]
    for each in others:
        table.add(each)
    kept = [each for alike in table.plans.values() for each in alike]
    assert len(kept) == MOST_ALIKE
    assert kept == others[-MOST_ALIKE:]
