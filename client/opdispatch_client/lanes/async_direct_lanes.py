"""The lanes of an asyncio session to interpreters: opened when a route first leads there."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.direct_way import DirectWay, least_busy
from opdispatch_client.lanes.routes import DirectRoute, Routes
from opdispatch_client.lanes.session_memory import SessionMemory
from opdispatch_wire.async_lane import AsyncLane
from opdispatch_wire.v1 import execution_pb2


class AsyncDirectLanes:
    """As ``DirectLanes``, for the tasks of one event loop."""

    def __init__(self, memory: SessionMemory, routes: Routes) -> None:
        self._memory = memory
        self._routes = routes
        self._opening = asyncio.Lock()  # so that there is one lane for each interpreter
        self._lanes: dict[int, AsyncLane] = {}
        self._is_closed = False

    async def find(self, shape: Hashable, limit: int) -> DirectWay[AsyncLane] | None:
        """The way of a call of that shape, to the interpreter with the fewest of our calls.

        None if there is none. Lanes take messages of at most ``limit`` bytes.
        """
        while (route := self._routes.find(shape)) is not None:
            ways = [
                DirectWay(route, target, lane)
                for target in route.targets
                if (lane := await self._lane_to(target, route, limit)) is not None
            ]
            if ways:
                return least_busy(ways)
        return None

    def tend(self) -> None:
        """Says what has been released in memory, on lanes where no call does so."""
        for lane in self._lanes.values():
            if lane.memory is not None and not lane.is_closed:
                lane.memory.tell_releases()

    def close(self) -> None:
        """Ends all calls with LaneClosedError. Idempotent."""
        self._is_closed = True
        for lane in self._lanes.values():
            lane.close()

    async def _lane_to(
        self, target: execution_pb2.RouteTarget, route: DirectRoute, limit: int
    ) -> AsyncLane | None:
        lane = self._lanes.get(target.session)
        if lane is None and not self._is_closed:
            lane = await self._open(target, limit)
        if lane is not None and not lane.is_closed:
            return lane
        route.without(target.session)
        return None

    async def _open(self, target: execution_pb2.RouteTarget, limit: int) -> AsyncLane | None:
        async with self._opening:
            lane = self._lanes.get(target.session)
            if lane is None and not self._is_closed:
                for session in [s for s, each in self._lanes.items() if each.is_closed]:
                    self._lanes.pop(session).close()
                try:
                    lane = await AsyncLane.connect(target.lane, limit, self._memory.share)
                except (OSError, TimeoutError, OpdispatchError):
                    return None  # it has gone, or is not within reach: the daemon can be asked
                if self._is_closed:
                    lane.close()
                self._lanes[target.session] = lane
            return lane
