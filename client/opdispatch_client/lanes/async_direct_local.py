"""An asyncio session's local lanes to interpreters, opened when a route first leads there."""

from __future__ import annotations

from collections.abc import Hashable

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.direct_way import DirectWay, RelayedWay, choose_again, choose_way
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_client.session_memory import SessionMemory
from opdispatch_wire.lanes.async_lane import AsyncLane
from opdispatch_wire.lanes.lane_messages import patience_until
from opdispatch_wire.v1 import execution_pb2


class AsyncDirectLanes:
    """Like ``DirectLanes``, for the tasks of one event loop."""

    def __init__(self, memory: SessionMemory, routes: Routes) -> None:
        self._memory = memory
        self._routes = routes
        # While one task opens a lane, calls of other tasks go through the daemon.
        self._is_opening = False
        self._lanes: dict[int, AsyncLane] = {}
        self._is_closed = False

    async def find(
        self, shape: Hashable, limit: int, deadline: float | None
    ) -> DirectWay[AsyncLane] | RelayedWay | None:
        """Find a direct way like ``DirectLanes.find``."""
        route = self._routes.find(shape)
        if route is None:
            return None
        lanes = [await self._lane_to(target, route, limit, deadline) for target in route.targets]
        return choose_way(route, lanes, self._routes.relayed)

    def find_again(self, way: DirectWay[AsyncLane], shape: Hashable) -> DirectWay[AsyncLane] | None:
        """Return the way of a call like ``DirectLanes.find_again``."""
        return choose_again(self._routes, way, shape, self._lanes)

    def tend(self) -> None:
        """Send pending releases of shared memory on lanes without calls, which would do so."""
        for lane in self._lanes.values():
            if lane.memory is not None and not lane.is_closed:
                lane.memory.tell_releases()

    def close(self) -> None:
        """End all calls with LaneClosedError. Idempotent."""
        self._is_closed = True
        for lane in self._lanes.values():
            lane.close()

    async def _lane_to(
        self,
        target: execution_pb2.RouteTarget,
        route: DirectRoute,
        limit: int,
        deadline: float | None,
    ) -> AsyncLane | None:
        """Return the lane like ``DirectLanes._lane_to``."""
        lane = self._lanes.get(target.session)
        if target.session not in route.within_reach:
            return lane
        if lane is None and target.lane and not self._is_closed:
            patience = patience_until(deadline)
            if not patience or self._is_opening:
                return None
            self._is_opening = True
            try:
                lane = await self._open(target, limit, patience)
            finally:
                self._is_opening = False
        if lane is not None and not lane.is_closed:
            return lane
        route.without(target.session)
        return None

    async def _open(
        self, target: execution_pb2.RouteTarget, limit: int, patience: float
    ) -> AsyncLane | None:
        """Open a lane.

        Return None if the target has gone or is out of reach; its calls go through the daemon.
        """
        try:
            lane = await AsyncLane.connect(
                target.lane, limit, self._memory.share, patience=patience
            )
        except (OSError, OpdispatchError):
            return None
        for session in [s for s, each in self._lanes.items() if each.is_closed]:
            self._lanes.pop(session).close()
        if self._is_closed:
            lane.close()
        else:
            self._lanes[target.session] = lane
        return lane
