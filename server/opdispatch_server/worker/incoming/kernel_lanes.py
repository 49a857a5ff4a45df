"""An interpreter's local lanes under one set of rules: the daemon's, or those for clients."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

from opdispatch_server.metrics.client_calls import (
    ClientConnection,
    local_client,
    process_client_calls,
)
from opdispatch_server.serving.lane_listener import LaneListener
from opdispatch_server.worker.execution.kernels import KernelExecution
from opdispatch_server.worker.incoming.call_rules import CallRules
from opdispatch_server.worker.incoming.kernel_lane import KernelLane
from opdispatch_server.worker.incoming.turn_watch import TurnWatch
from opdispatch_wire.shared_memory.memory_budget import MemoryBudget
from opdispatch_wire.shared_memory.tensor_arena import IDLE_SECONDS

# Interval in seconds of the checks for idle memory.
_TRIM_SECONDS = IDLE_SECONDS / 6
# Interval in seconds of the checks for the end of lanes.
_END_LOOK = 0.002


class KernelLanes:
    """Lanes that accept calls by ``rules``. The public methods are for the event loop only."""

    def __init__(
        self,
        execution: KernelExecution,
        rules: CallRules,
        limit: int,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Serve lanes with messages of at most ``limit`` bytes.

        With a ``budget`` for results, they share memory with callers that support it.
        """
        self._execution = execution
        self._rules = rules
        self._limit = limit
        self._budget = budget
        self._watch = TurnWatch()
        self._trimming: asyncio.TimerHandle | None = None
        self._listener: LaneListener | None = None
        self._mutex = threading.Lock()  # protects _lanes
        self._lanes: dict[KernelLane, ClientConnection | None] = {}

    def listen(self, path: str) -> None:
        """Listen at the unix socket ``path``. Raises OSError."""
        self._listener = LaneListener(path, self._add)
        if self._budget is not None:
            self._trim_now_and_then()

    async def finish(self, seconds: float) -> None:
        """End every lane once the calls sent on it are answered, but after ``seconds`` at most."""
        if self._listener is not None:
            self._listener.close()
        with self._mutex:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.end_reading()
        end = time.monotonic() + seconds
        while self._lanes and time.monotonic() < end:
            await asyncio.sleep(_END_LOOK)
        self.close()

    def close(self) -> None:
        """End every lane. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        if self._trimming is not None:
            self._trimming.cancel()
        with self._mutex:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.close()
        self._watch.stop()

    def _trim_now_and_then(self) -> None:
        """Return idle shared memory to the system, and schedule the next check."""
        with self._mutex:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.trim()
        loop = asyncio.get_running_loop()
        self._trimming = loop.call_later(_TRIM_SECONDS, self._trim_now_and_then)

    def _add(self, connection: socket.socket) -> None:
        client = None
        if self._rules.room is not None:  # the connection is a client's, not the daemon's
            client = process_client_calls().begin(local_client(connection))
        lane = KernelLane(
            connection,
            self._execution,
            self._rules,
            self._watch,
            self._limit,
            self._rules.new_lane(),
            self._remove,
            self._budget,
            client,
        )
        with self._mutex:
            self._lanes[lane] = client
        lane.start()

    def _remove(self, lane: KernelLane) -> None:
        with self._mutex:
            client = self._lanes.pop(lane, None)
        if client is not None:
            process_client_calls().end(client)
