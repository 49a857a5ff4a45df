"""The lanes of a session to interpreters: opened when a route first leads there."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.direct_way import DirectWay, least_busy
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_client.lanes.session_memory import SessionMemory
from opdispatch_wire.blocking_lane import BlockingLane
from opdispatch_wire.v1 import execution_pb2


class DirectLanes:
    """Any number of threads may use them.

    ``_mutex`` is held while a lane is opened, so that there is one for each interpreter.
    """

    def __init__(self, memory: SessionMemory, routes: Routes) -> None:
        self._memory = memory
        self._routes = routes
        self._mutex = threading.Lock()
        self._lanes: dict[int, BlockingLane] = {}
        self._is_closed = False

    def find(self, shape: Hashable, limit: int) -> DirectWay[BlockingLane] | None:
        """The way of a call of that shape, to the interpreter with the fewest of our calls.

        None if there is none. Lanes take messages of at most ``limit`` bytes.
        """
        while (route := self._routes.find(shape)) is not None:
            ways = [
                DirectWay(route, target, lane)
                for target in route.targets
                if (lane := self._lane_to(target, route, limit)) is not None
            ]
            if ways:
                return least_busy(ways)
        return None

    def tend(self) -> None:
        """Says and hears what is to be said about memory, on lanes where no call does so."""
        with self._mutex:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.tend()

    def close(self) -> None:
        """Ends all calls with LaneClosedError. Idempotent."""
        with self._mutex:
            self._is_closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()

    def _lane_to(
        self, target: execution_pb2.RouteTarget, route: DirectRoute, limit: int
    ) -> BlockingLane | None:
        lane = self._lanes.get(target.session)
        if lane is None and not self._is_closed:
            lane = self._open(target, limit)
        if lane is not None and not lane.is_closed:
            return lane
        route.without(target.session)
        return None

    def _open(self, target: execution_pb2.RouteTarget, limit: int) -> BlockingLane | None:
        with self._mutex:
            lane = self._lanes.get(target.session)
            if lane is None and not self._is_closed:
                for session in [s for s, each in self._lanes.items() if each.is_closed]:
                    self._lanes.pop(session).close()
                try:
                    lane = BlockingLane.connect(target.lane, limit, self._memory.share)
                except (OSError, OpdispatchError):
                    return None  # it has gone, or is not within reach: the daemon can be asked
                self._lanes[target.session] = lane
            return lane
