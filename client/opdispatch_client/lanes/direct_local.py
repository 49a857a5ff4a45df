"""A blocking session's local lanes to interpreters, opened when a route first leads there."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay, choose_again, choose_way
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_client.session_memory import SessionMemory
from opdispatch_wire.lanes.blocking_lane import BlockingLane
from opdispatch_wire.lanes.lane_messages import patience_until
from opdispatch_wire.v1 import execution_pb2

# Seconds to wait for an interpreter; one that takes longer is busy, and the daemon chooses another.
_OPENING_PATIENCE = 1.0


class DirectLanes:
    """The lanes of one session, by interpreter. Any number of threads may use them.

    ``_opening`` is held by the only thread that opens a lane. It may have to wait for an
    interpreter, so calls of other threads go through the daemon meanwhile. ``_mutex`` protects the
    other fields: no lane is added to ``_lanes`` once ``_is_closed`` is set.
    """

    def __init__(self, memory: SessionMemory, routes: Routes) -> None:
        self._memory = memory
        self._routes = routes
        self._opening = threading.Lock()
        self._mutex = threading.Lock()
        self._lanes: dict[int, BlockingLane] = {}
        self._is_closed = False

    def find(
        self, shape: Hashable, limit: int, deadline: float | None
    ) -> DirectWay[BlockingLane] | RelayedWay | None:
        """Return the way for a call of that shape, to the interpreter with our fewest calls.

        None if no lane is open, or not yet; the daemon then chooses. New lanes take messages of at
        most ``limit`` bytes. Waits at most until ``deadline``, by ``time.monotonic``.
        """
        route = self._routes.find(shape)
        if route is None:
            return None
        lanes = [self._lane_to(target, route, limit, deadline) for target in route.targets]
        return choose_way(route, lanes, self._routes.relayed)

    def find_again(
        self, way: DirectWay[BlockingLane], shape: Hashable
    ) -> DirectWay[BlockingLane] | None:
        """Return the way for a call as ``choose_again`` does; if it is None, call ``find``."""
        return choose_again(self._routes, way, shape, self._lanes)

    def tend(self) -> None:
        """Send and read pending releases of shared memory on lanes without calls to do so."""
        with self._mutex:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.tend()

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
        with self._mutex:
            self._is_closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()

    def _lane_to(
        self,
        target: execution_pb2.RouteTarget,
        route: DirectRoute,
        limit: int,
        deadline: float | None,
    ) -> BlockingLane | None:
        """Return the lane to a target, opening it if the target is within the route's reach.

        None if the daemon has to relay calls there, temporarily or until the route changes.
        """
        lane = self._lanes.get(target.session)
        if target.session not in route.within_reach:
            return lane
        if lane is None and target.lane and not self._is_closed:
            patience = patience_until(deadline)
            if not patience or not self._opening.acquire(blocking=False):
                return None
            try:
                patience = min(patience, _OPENING_PATIENCE)
                # Looked up again: another thread may have opened it before this one held
                # ``_opening``.
                lane = self._lanes.get(target.session) or self._open(target, limit, patience)
            finally:
                self._opening.release()
        if lane is not None and not lane.is_closed:
            return lane
        route.without(target.session)
        return None

    def _open(
        self, target: execution_pb2.RouteTarget, limit: int, patience: float
    ) -> BlockingLane | None:
        """Open a lane.

        Return None if the target has gone or is out of reach; its calls go through the daemon.
        """
        try:
            lane = BlockingLane.connect(target.lane, limit, self._memory.share, patience=patience)
        except (OSError, OpdispatchError):
            return None
        with self._mutex:
            over = [self._lanes.pop(s) for s, each in [*self._lanes.items()] if each.is_closed]
            # ``close`` sets the flag under the mutex, too: it either closes this lane or is seen
            # here.
            if self._is_closed:
                over.append(lane)
            else:
                self._lanes[target.session] = lane
        for each in over:
            each.close()
        return lane
