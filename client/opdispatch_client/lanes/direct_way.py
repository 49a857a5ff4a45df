"""How one call goes directly to an interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from opdispatch_client.lanes.routes import DirectRoute
from opdispatch_wire.v1 import execution_pb2


class InterpreterLane(Protocol):
    """What both kinds of lanes have, blocking and asyncio."""

    @property
    def number(self) -> int:
        """What the interpreter calls this connection."""

    @property
    def calls_in_flight(self) -> int:
        """How many calls wait for their replies."""


L_co = TypeVar("L_co", bound=InterpreterLane, covariant=True)


class DirectWay(Generic[L_co]):
    """A route, one of its targets, and the lane there."""

    __slots__ = ("lane", "route", "target")

    def __init__(self, route: DirectRoute, target: execution_pb2.RouteTarget, lane: L_co) -> None:
        self.route = route
        self.target = target
        self.lane = lane

    def lost_call(self, number: int) -> execution_pb2.LostCall:
        """What the daemon is told of a call of that id that had no reply."""
        return execution_pb2.LostCall(
            session=self.target.session,
            lane=self.lane.number,
            id=number,
            interpreter=self.target.interpreter,
        )


def least_busy(ways: Sequence[DirectWay[L_co]]) -> DirectWay[L_co]:
    """The way to the interpreter with the fewest of our calls; those with equally many take turns.

    There is at least one way, and all are of one route.
    """
    if len(ways) == 1:
        return ways[0]
    first = ways[0].route.next_turn() % len(ways)
    return min((*ways[first:], *ways[:first]), key=lambda way: way.lane.calls_in_flight)
