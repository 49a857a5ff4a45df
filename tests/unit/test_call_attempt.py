"""Where a call goes next that an interpreter did not run."""

from __future__ import annotations

import numpy as np
import pytest

from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.call_attempt import CallAttempt
from opdispatch_client.lanes.direct_way import DirectWay
from opdispatch_client.lanes.routes import Routes
from opdispatch_client.operator_call import OperatorCall
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.lanes.lane_messages import InterpreterBusyError, LaneClosedError
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
    attempt.leave(way, routes, RefusedError("the route does not hold any more"))
    assert attempt.request.preferred_session == 2
    assert attempt.request.wants_route
    assert routes.relayed.in_flight(2) == 1
    attempt.close()
    assert routes.relayed.in_flight(2) == 0


@pytest.mark.parametrize("why", [InterpreterBusyError(), LaneClosedError("the lane has ended")])
def test_call_that_cannot_run_there_goes_where_the_daemon_chooses(why: LaneClosedError):
    route, routes = route_to(2), Routes()
    way = DirectWay(route, route.targets[1], Lane())
    attempt = attempt_on(way)
    attempt.leave(way, routes, why)
    assert not attempt.request.preferred_session
    assert routes.relayed.in_flight(2) == 0
