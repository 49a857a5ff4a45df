"""Where a call goes next that an interpreter did not run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay, choose_way
from opdispatch_client.lanes.routes import Routes
from opdispatch_client.operator_call import OperatorCall
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.lanes.lane_messages import InterpreterBusyError, LaneClosedError
from opdispatch_wire.v1 import execution_pb2
from tests.unit.test_direct_way import Lane, route_to


def attempt_on(way: DirectWay[Lane]) -> CallAttempt:
    call = OperatorCall("ns::f", (np.zeros(2),), {}, retry=True)
    attempt = CallAttempt(call, Endpoint("unix:///daemon.sock", None, 1 << 20))
    attempt.encode(None)
    way.route.direct(attempt.request)
    return attempt


def test_refused_call_is_relayed_to_the_interpreter_that_it_was_meant_for():
    """Else those that have heard of a new route would run what is meant for one that has not."""
    route, routes = route_to(2), Routes()
    way = DirectWay(route, route.targets[1], Lane())
    attempt = attempt_on(way)
    attempt.stay(way, routes)
    assert routes.relayed.in_flight(2) == 1
    attempt.leave(way, routes, RefusedError("the route does not hold any more"))
    assert attempt.request.preferred_session == 2
    assert attempt.request.wants_route
    assert routes.relayed.in_flight(2) == 1
    attempt.close()
    assert routes.relayed.in_flight(2) == 0


def test_calls_stay_spread_where_one_interpreter_refuses_its_share():
    """It takes no direct calls for the moment; the others do, and what they run still counts."""
    routes, lanes = Routes(), [Lane(), Lane(), None, None]
    targets = [execution_pb2.RouteTarget(session=n + 1) for n in range(4)]
    routes.learn("shape", execution_pb2.CallReply(route={"epoch": 7, "targets": targets}))
    ran: Counter[int] = Counter()
    at_second = []

    def begin() -> None:
        route = routes.find("shape")
        assert route is not None
        way = choose_way(route, lanes, routes.relayed)
        assert way is not None
        if isinstance(way, RelayedWay):
            routes.relayed.begin(way.target.session)
        else:
            way.lane.calls_in_flight += 1
            if way.target.session == 2 and len(at_second) < 6:
                at_second.append((way, attempt_on(way)))
        ran[way.target.session] += 1

    for _ in range(28):
        begin()
    for way, attempt in at_second:  # it had taken one call, and has begun to refuse
        way.lane.calls_in_flight -= 1
        attempt.stay(way, routes)
        begin()
    for _ in range(6):
        begin()
    assert ran == {1: 10, 2: 10, 3: 10, 4: 10}


def test_route_that_every_interpreter_has_refused_is_asked_for_again():
    routes = Routes()
    targets = [execution_pb2.RouteTarget(session=n + 1) for n in range(2)]
    reply = execution_pb2.CallReply(route={"epoch": 7, "targets": targets})
    for shape in ("one", "another"):
        routes.learn(shape, reply)
    routes.refused(7, 1)
    assert routes.find("one") is not None
    assert not routes.wants("one")
    routes.refused(7, 2)
    for shape in ("one", "another"):
        assert routes.find(shape) is None
        assert routes.wants(shape)
    routes.learn("one", reply)  # it was refused too early
    assert routes.find("one") is not None


@pytest.mark.parametrize("why", [InterpreterBusyError(), LaneClosedError("the lane has ended")])
def test_call_that_cannot_run_there_goes_where_the_daemon_chooses(why: LaneClosedError):
    route, routes = route_to(2), Routes()
    way = DirectWay(route, route.targets[1], Lane())
    attempt = attempt_on(way)
    attempt.leave(way, routes, why)
    assert not attempt.request.preferred_session
    assert routes.relayed.in_flight(2) == 0
