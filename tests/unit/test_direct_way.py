"""Which of the interpreters that a route names gets the next call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay, choose_way
from opdispatch_client.lanes.relayed_calls import RelayedCalls
from opdispatch_client.lanes.routes import DirectRoute
from opdispatch_wire.v1 import execution_pb2


@dataclass
class Lane:
    calls_in_flight: int = 0
    number: int = 1


def route_to(count: int) -> DirectRoute:
    targets = [execution_pb2.RouteTarget(session=n + 1) for n in range(count)]
    return DirectRoute(execution_pb2.Route(targets=targets))


@given(
    reached=st.lists(st.booleans(), min_size=1, max_size=6).filter(any),
    steps=st.lists(st.none() | st.integers(0, 100), max_size=60),
    contended=st.booleans(),
)
def test_holders_differ_by_one_call_at_most(
    reached: list[bool], steps: Sequence[int | None], contended: bool
):
    """While calls come, and end in any order."""
    route, relayed = route_to(len(reached)), RelayedCalls()
    for _ in range(3 if contended else 0):
        route.note_wait(True)
    assert route.is_contended is contended
    lanes = [Lane() if each else None for each in reached]
    under_way = []
    for step in steps:
        if step is not None and under_way:
            under_way.pop(step % len(under_way))()
            continue
        way = choose_way(route, lanes, relayed)
        place = way.target.session - 1  # type: ignore[union-attr]
        loads = [
            lane.calls_in_flight if lane is not None else relayed.in_flight(n + 1)
            for n, lane in enumerate(lanes)
        ]
        assert loads[place] == min(loads)
        if isinstance(way, DirectWay):
            lane = way.lane
            lane.calls_in_flight += 1

            def end(lane: Lane = lane) -> None:
                lane.calls_in_flight -= 1

            under_way.append(end)
        else:
            assert isinstance(way, RelayedWay)
            assert lanes[place] is None
            assert contended or not any(
                load == loads[place] for load, lane in zip(loads, lanes, strict=True) if lane
            )
            call = relayed.begin(way.target.session)
            under_way.append(call.end)
    for end_call in under_way:
        end_call()
    assert all(relayed.in_flight(n + 1) == 0 for n in range(len(reached)))


def test_equally_busy_holders_take_turns():
    route, relayed = route_to(4), RelayedCalls()
    lanes = [Lane(), None, Lane(), None]
    idle = Counter(choose_way(route, lanes, relayed).target.session for _ in range(40))  # type: ignore[union-attr]
    assert idle == {1: 20, 3: 20}
    for has_waited in (True, True, False, True, True, True):
        assert not route.is_contended
        route.note_wait(has_waited)
    busy = Counter(choose_way(route, lanes, relayed).target.session for _ in range(40))  # type: ignore[union-attr]
    assert busy == {1: 10, 2: 10, 3: 10, 4: 10}


def test_calls_of_both_ways_to_one_holder_count():
    """Those that were relayed while its lane was being opened are still there."""
    route, relayed = route_to(2), RelayedCalls()
    relayed.begin(1)
    way = choose_way(route, [Lane(), Lane()], relayed)
    assert isinstance(way, DirectWay)
    assert way.target.session == 2


def test_daemon_chooses_where_all_are_out_of_reach():
    route = route_to(2)
    for session in (1, 2):
        assert choose_way(route, [None, None], RelayedCalls()) is not None
        route.without(session)
    assert choose_way(route, [None, None], RelayedCalls()) is None


def test_relayed_call_ends_once():
    relayed = RelayedCalls()
    first, second = relayed.begin(1), relayed.begin(1)
    first.end()
    first.end()
    assert relayed.in_flight(1) == 1
    second.end()
    assert relayed.in_flight(1) == 0
