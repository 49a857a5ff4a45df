"""One call of a session on its way: to an interpreter, to the daemon, or first there, then here."""

from __future__ import annotations

import time
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_client.direct_way import DirectWay, InterpreterLane
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.routes import Routes
from opdispatch_client.rpcs import Rpc
from opdispatch_wire.errors import DaemonUnavailableError, InterpreterDiedError
from opdispatch_wire.lane_messages import LaneClosedError
from opdispatch_wire.status import late_answer_error, lost_connection_error
from opdispatch_wire.v1 import execution_pb2


class CallAttempt:
    """The request, and how long the caller waits for all of its ways together."""

    __slots__ = ("_address", "_deadline", "request", "rpc")

    def __init__(self, rpc: Rpc[Any], endpoint: Endpoint) -> None:
        assert isinstance(rpc.request, execution_pb2.CallRequest), "it comes from rpcs.call"
        self.rpc = rpc
        self.request = rpc.request
        self._address = endpoint.address
        timeout = endpoint.timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def time_left(self) -> float | None:
        """The seconds until the deadline, which the request says then, too; None: any time."""
        if self._deadline is None:
            return None
        seconds = max(self._deadline - time.monotonic(), 0.0)
        self.request.timeout = seconds
        return seconds

    def leave(
        self, way: DirectWay[InterpreterLane], routes: Routes, lost: LaneClosedError | None
    ) -> None:
        """Has the request ask the daemon, which says where such calls go from now on.

        The interpreter has refused the call, or ``lost`` has ended its lane.
        """
        request = self.request
        if lost is None:
            routes.forget(way.route.epoch)
        else:
            way.route.without(way.target.session)
            if lost.was_sent:
                request.lost.CopyFrom(way.lost_call(request.id))
        request.operator = self.rpc.operator
        request.ClearField("kernel")
        request.ClearField("route_epoch")
        request.wants_route = True

    def explain(self, error: Exception) -> Exception:
        """What the caller is told of an error on the way."""
        if isinstance(error, LaneClosedError | DaemonUnavailableError):
            return self._explain_break(error)
        if isinstance(error, TimeoutError) and not isinstance(error, OpdispatchError):
            return late_answer_error(self._address)
        return error

    def _explain_break(self, error: LaneClosedError | DaemonUnavailableError) -> Exception:
        if self.request.HasField("lost"):
            name, operator = self.request.lost.interpreter, self.rpc.operator
            return InterpreterDiedError(
                f"interpreter {name} went away while it was running {operator}, and the daemon "
                "cannot be asked why",
                interpreter=name,
                operator=operator,
            )
        if isinstance(error, LaneClosedError):
            return lost_connection_error(self._address, str(error))
        return error
