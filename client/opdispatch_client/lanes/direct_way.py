"""How one call goes to one of the interpreters that a route names."""

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
        """How many calls wait for their replies."""

    @property
    def is_closed(self) -> bool:
        """Whether calls have no chance any more."""


L = TypeVar("L", bound=InterpreterLane)
L_co = TypeVar("L_co", bound=InterpreterLane, covariant=True)


class DirectWay(Generic[L_co]):
    """A route, one of its targets, and the lane there."""

    __slots__ = ("lane", "route", "target")

    def __init__(self, route: DirectRoute, target: execution_pb2.RouteTarget, lane: L_co) -> None:
        self.route = route
        self.target = target
        self.lane = lane

    def lost_call(self, number: int) -> execution_pb2.LostCall:
        """Return the report to the daemon of a call of that id that had no reply."""
        return execution_pb2.LostCall(
            session=self.target.session,
            lane=self.lane.number,
            id=number,
            interpreter=self.target.interpreter,
        )


class RelayedWay:
    """A route, and one of its targets, to which the daemon relays the call."""

    __slots__ = ("route", "target")

    def __init__(self, route: DirectRoute, target: execution_pb2.RouteTarget) -> None:
        self.route = route
        self.target = target


def choose_again(
    routes: Routes, way: DirectWay[L], shape: Hashable, lanes: Mapping[int, L]
) -> DirectWay[L] | None:
    """Return the way of a call of that shape, of which one went that ``way`` before.

    ``lanes`` are those that there are, by session. None: the route has changed, or not all of its
    lanes are open, so that the way is to be found anew.
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
    """Return the way to the interpreter with the fewest of our calls, on whichever way these went.

    ``lanes`` are those to the route's targets, in their order; to one without a lane, or out of the
    route's reach, the daemon relays calls, at least for the moment. Of equally busy interpreters,
    one that is called directly comes first, since that is quicker, unless others keep it busy;
    those that are alike take turns. Returns None if all are out of reach: then the daemon, which
    knows of others' calls, chooses better.
    """
    place = 0 if len(lanes) == 1 else _least_busy(route, lanes, relayed)
    lane, target, reach = lanes[place], route.targets[place], route.within_reach
    if lane is not None and target.session in reach:
        return DirectWay(route, target, lane)
    return RelayedWay(route, target) if reach else None


def _least_busy(route: DirectRoute, lanes: Sequence[L | None], relayed: RelayedCalls) -> int:
    """Return the place of the target that ``choose_way`` chooses."""
    relays_cost, reach = 0 if route.is_contended else 1, route.within_reach
    loads = [
        2 * (relayed.in_flight(target.session) + (0 if lane is None else lane.calls_in_flight))
        + (0 if lane is not None and target.session in reach else relays_cost)
        for target, lane in zip(route.targets, lanes, strict=True)
    ]
    fewest = min(loads)
    best = [place for place, load in enumerate(loads) if load == fewest]
    return best[route.next_turn() % len(best)]
