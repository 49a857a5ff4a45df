"""The shared memory of planned calls: see Note [Planned calls] in ``call_plan``. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch_client.lanes.call_plan import CallPlan
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.shared_memory.peer_memory import PeerMemory


class PlannedMemory:
    """Shared memory for the arguments, the results or both of one planned call.

    The lane holds the arguments' blocks from ``encode`` until the reply arrives, because the
    interpreter may read them until then.
    """

    __slots__ = ("_lane", "_leaves", "_number", "_plan", "_timeout", "memory", "request")

    def __init__(
        self,
        plan: CallPlan,
        leaves: Sequence[Any],
        timeout: float | None,
        lane: CallerLaneMemory,
        memory: CallerMemory,
    ) -> None:
        self._plan = plan
        self._leaves = leaves
        self._timeout = timeout
        self._lane = lane
        self._number = 0
        self.memory = memory
        self.request = b""
        """The serialized request that ``encode`` returned last."""

    @classmethod
    def of(
        cls,
        plan: CallPlan,
        leaves: Sequence[Any],
        timeout: float | None,
        lane: CallerLaneMemory | None,
        peer: PeerMemory | None,
    ) -> PlannedMemory | None:
        """Place a call's arguments in shared memory; its results are read from ``peer``.

        Return None if the lane has no shared memory, or no room in it.
        """
        if lane is None:
            return None
        memory = lane.new_call(peer)
        shared = plan.form.shared
        if shared:
            placed = memory.placed.put_together(leaves, shared)
            if placed is None or not lane.pass_regions(memory):
                memory.release()
                return None
            leaves = placed
        return cls(plan, leaves, timeout, lane, memory)

    def encode(self, number: int) -> bytes:
        """Return the request with that id, and hold its memory from now on.

        Raises LaneClosedError.
        """
        self._number = number
        self.request = self._plan.form.write(self._leaves, self._timeout, number)
        if self.memory.placed.held:
            self._lane.hold(number, self.memory)
        return self.request

    def read(self, payload: bytes | memoryview, place: int) -> tuple[Any] | None:
        """Return the result in a reply as ``CallPlan.read`` does, and release the call's memory."""
        result = self._plan.read(payload, place, self.memory)
        if result is not None:
            self._lane.replied(self._number)
            self.memory.placed.release()
        return result
