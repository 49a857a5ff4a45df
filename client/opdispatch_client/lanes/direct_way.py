"""Choose the interpreter of one call among the targets of its route."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from opdispatch_client.lanes.relayed_calls import RelayedCalls
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_wire.v1 import execution_pb2


class InterpreterLane(Protocol):
    """Base of the blocking and the asyncio lane to an interpreter."""

    @property
    def number(self) -> int:
        """Number by which the interpreter knows this connection."""

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that wait for their replies."""

    @property
    def is_closed(self) -> bool:
        """Whether the lane has ended, so that calls on it fail."""


L = TypeVar("L", bound=InterpreterLane)
L_co = TypeVar("L_co", bound=InterpreterLane, covariant=True)


class DirectWay(Generic[L_co]):
    """A route, one of its targets, and the lane to it."""

    __slots__ = ("lane", "route", "target")

    def __init__(self, route: DirectRoute, target: execution_pb2.RouteTarget, lane: L_co) -> None:
        self.route = route
        self.target = target
        self.lane = lane

    def lost_call(self, number: int) -> execution_pb2.LostCall:
        """Return the report to the daemon of a call with that id which got no reply."""
        return execution_pb2.LostCall(
            session=self.target.session,
            lane=self.lane.number,
            id=number,
            interpreter=self.target.interpreter,
        )


class RelayedWay:
    """A route and one of its targets, to which the daemon relays the call."""

    __slots__ = ("route", "target")

    def __init__(self, route: DirectRoute, target: execution_pb2.RouteTarget) -> None:
        self.route = route
        self.target = target


def choose_again(
    routes: Routes, way: DirectWay[L], shape: Hashable, lanes: Mapping[int, L]
) -> DirectWay[L] | None:
    """Return the way for a call of that shape, given the ``way`` of an earlier one.

    ``lanes`` has the existing lanes, by session number. Return None if the route has changed or not
    all of its lanes are open: the way then has to be found anew.
    """
    route = routes.find(shape)
    if route is not way.route:
        return None
    if len(route.targets) == 1:
        return None if way.lane.is_closed else way
    found = [lanes.get(target.session) for target in route.targets]
    if len(route.within_reach) < len(found) or any(
        lane is None or lane.is_closed for lane in found
    ):
        return None
    chosen = choose_way(route, found, routes.relayed)
    return chosen if isinstance(chosen, DirectWay) else None


def choose_way(
    route: DirectRoute, lanes: Sequence[L | None], relayed: RelayedCalls
) -> DirectWay[L] | RelayedWay | None:
    """Return the way to the interpreter with the fewest of this session's calls in flight.

    ``lanes`` has the lane to each target of the route, in the same order. The daemon relays calls
    to a target without a lane or out of reach. Among equally busy targets, those with a lane are
    preferred, because direct calls are faster, unless other sessions keep them busy; equal ones
    take turns. Return None if all targets are out of reach: the daemon, which knows the calls of
    other sessions, chooses better.
    """
    place = 0 if len(lanes) == 1 else _least_busy(route, lanes, relayed)
    lane, target, reach = lanes[place], route.targets[place], route.within_reach
    if lane is not None and target.session in reach:
        return DirectWay(route, target, lane)
    return RelayedWay(route, target) if reach else None


def _least_busy(route: DirectRoute, lanes: Sequence[L | None], relayed: RelayedCalls) -> int:
    """Return the index of the target that ``choose_way`` chooses."""
    relays_cost, reach = 0 if route.is_contended else 1, route.within_reach
    loads = [
        2 * (relayed.in_flight(target.session) + (0 if lane is None else lane.calls_in_flight))
        + (0 if lane is not None and target.session in reach else relays_cost)
        for target, lane in zip(route.targets, lanes, strict=True)
    ]
    fewest = min(loads)
    best = [place for place, load in enumerate(loads) if load == fewest]
    return best[route.next_turn() % len(best)]
