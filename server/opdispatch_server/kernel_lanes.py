"""The local lanes of an interpreter that have one set of rules: the daemon's, or clients'."""

from __future__ import annotations

import itertools
import socket
import threading

from opdispatch_server.call_context import CallContext
from opdispatch_server.kernel_execution import KernelExecution
from opdispatch_server.kernel_lane import CallRules, KernelLane
from opdispatch_server.lane_listener import LaneListener
from opdispatch_server.reading_turn import TurnWatch
from opdispatch_wire.v1 import execution_pb2


class DaemonCalls:
    """The rules for the daemon's calls: it is believed, and knows how many it may send."""

    room = None

    def admit(self, lane: int, request: execution_pb2.CallRequest) -> CallContext:
        """What the daemon says."""
        return CallContext.of_request(request)

    def begin(self, context: CallContext) -> None:
        """Nothing to note: the daemon knows what runs."""

    def end(self, context: CallContext) -> None:
        """Nothing to note."""


class KernelLanes:
    """They take calls by ``rules``. ``listen`` and ``close`` belong to the event loop."""

    def __init__(self, execution: KernelExecution, rules: CallRules, limit: int) -> None:
        self._execution = execution
        self._rules = rules
        self._limit = limit
        self._watch = TurnWatch()
        self._listener: LaneListener | None = None
        self._numbers = itertools.count(1)
        self._mutex = threading.Lock()  # protects _lanes
        self._lanes: set[KernelLane] = set()

    def listen(self, path: str) -> None:
        """Takes calls at ``path``. Raises OSError."""
        self._listener = LaneListener(path, self._add)

    def close(self) -> None:
        """Ends every lane. Idempotent."""
        if self._listener is not None:
            self._listener.close()
        with self._mutex:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.close()
        self._watch.stop()

    def _add(self, connection: socket.socket) -> None:
        lane = KernelLane(
            connection,
            self._execution,
            self._rules,
            self._watch,
            self._limit,
            next(self._numbers),
            self._remove,
        )
        with self._mutex:
            self._lanes.add(lane)
        lane.start()

    def _remove(self, lane: KernelLane) -> None:
        with self._mutex:
            self._lanes.discard(lane)
