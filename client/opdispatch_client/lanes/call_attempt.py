"""One call of a session, sent to an interpreter, to the daemon, or to both in turn."""

from __future__ import annotations

import math
import time
from typing import Any

from opdispatch.errors import OpdispatchError
from opdispatch_client.daemon_wait import DaemonWait, has_not_begun, may_have_run
from opdispatch_client.endpoint import Endpoint
from opdispatch_client.lanes.direct_way import DirectWay, InterpreterLane, RelayedWay
from opdispatch_client.lanes.relayed_calls import RelayedCall, RelayedCalls
from opdispatch_client.lanes.routes import Routes
from opdispatch_client.operator_call import Call
from opdispatch_wire.caller_tensors import CallerTensors
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    MessageTooLargeError,
    RefusedError,
    UnauthenticatedError,
)
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory
from opdispatch_wire.lanes.lane_messages import LaneClosedError, NotAdmittedError
from opdispatch_wire.remote_values import are_values_elsewhere, were_not_kept
from opdispatch_wire.shared_memory.call_memory import CallerMemory
from opdispatch_wire.shared_memory.peer_memory import PeerMemory, is_without_room
from opdispatch_wire.status import error_from_status, late_answer_error, lost_connection_error
from opdispatch_wire.v1 import execution_pb2


class CallAttempt:
    """The request of one call, and the deadline for all attempts to send it.

    ``encode`` or ``prepare`` makes the request, once it is known where it is sent first. If the
    caller does not wait for the call, it is ``detached``: its arguments are then copied.
    """

    __slots__ = (
        "_address",
        "_is_detached",
        "_is_encoded",
        "_wants_route",
        "call",
        "deadline",
        "lost",
        "memory",
        "relayed",
        "request",
        "route_epoch",
        "tensors",
    )

    def __init__(self, call: Call, endpoint: Endpoint, *, detached: bool = False) -> None:
        self.call = call
        self.request: execution_pb2.CallRequest
        self.memory: CallerMemory | None = None
        """Shared memory for the large tensors of the request and the reply; None without."""
        self.tensors: CallerTensors | None = None
        """Large tensors of the request and the reply on a lane that shares no memory."""
        self.lost: Exception | None = None
        """Reason why the daemon's first reply was lost, if the call was sent again since."""
        self._is_detached = detached
        self._is_encoded = False
        self._wants_route = False
        self.relayed: RelayedCall | None = None
        """The interpreter to which the daemon should relay it; None leaves it to the daemon."""
        self.route_epoch = 0
        """Epoch of the route that was known when the daemon was asked for one; 0 if none was."""
        self._address = endpoint.address
        deadline = call.deadline
        if deadline is None and endpoint.timeout is not None:
            deadline = time.monotonic() + endpoint.timeout
        self.deadline = None if deadline == math.inf else deadline
        """Deadline by ``time.monotonic``; None without a limit."""

    @classmethod
    def of_sent(
        cls, call: Call, endpoint: Endpoint, request: bytes, memory: CallerMemory | None
    ) -> CallAttempt:
        """Return the attempt of a call whose serialized request has been sent on a lane already.

        ``memory`` has the large tensors of the request, and will have those of the reply.
        """
        attempt = cls(call, endpoint, detached=True)
        attempt.request = execution_pb2.CallRequest.FromString(request)
        attempt.request.ClearField("constant_bytes")
        attempt.memory = memory
        attempt._is_encoded = True
        return attempt

    @classmethod
    def of_planned(
        cls,
        call: Call,
        endpoint: Endpoint,
        way: DirectWay[InterpreterLane],
        shared: CallerLaneMemory | None,
        peer: PeerMemory | None,
        *,
        number: int,
        deadline: float | None,
    ) -> CallAttempt:
        """Return the attempt with which a planned call continues on the general path.

        It was sent with the id ``number`` on the lane of ``way``, with that ``shared`` memory.
        """
        attempt = cls(call, endpoint)
        attempt.deadline = deadline
        attempt.encode(shared, peer)
        way.route.direct(attempt.request)
        attempt.request.id = number
        return attempt

    def encode(self, shared: CallerLaneMemory | None, peer: PeerMemory | None = None) -> None:
        """Make the request for a lane with that ``shared`` memory. Raises WireError.

        Results are read from ``peer`` if it is given.
        """
        self.memory = shared.new_call(peer) if shared is not None else None
        self.request = self.call.encode(self.memory)
        self._is_encoded = True

    def ask_for_route(self) -> None:
        """Make the request ask the daemon for a route for calls like this."""
        self._wants_route = True

    def relay(self, way: RelayedWay, relayed: RelayedCalls) -> None:
        """Make the request ask the daemon to relay it to one interpreter, and for a newer route."""
        self._wants_route = True
        self.route_epoch = way.route.epoch
        self.relayed = relayed.begin(way.target.session)

    def close(self) -> None:
        """Close the attempt when the call is over, read or not. Idempotent and thread-safe."""
        if self.relayed is not None:
            self.relayed.end()
        self.call.close()

    def prepare(self, inline_bytes: int | None) -> None:
        """Make the request for a lane without shared memory, or adapt it. Raises WireError.

        Tensors of more than ``inline_bytes`` are sent outside the message; None: all are inline.
        """
        call = self.call
        if inline_bytes is not None and self.tensors is None:
            self.tensors = CallerTensors(inline_bytes, call.on_progress, copies=self._is_detached)
        if not self._is_encoded:
            self.request = call.encode(self.tensors)
            self.request.wants_route = self._wants_route
            if self.relayed is not None:
                self.request.route_epoch = self.route_epoch
                self.request.preferred_session = self.relayed.session
            self._is_encoded = True
        elif inline_bytes is None and self.tensors is not None:
            self.tensors.move_inline(self.request)
            self.tensors = None

    def prepare_for_stream(self, inline_bytes: int | None) -> None:
        """Prepare the request as ``prepare`` does, for a stream to an interpreter."""
        self.prepare(inline_bytes)
        self.request.chunks_reply = inline_bytes is not None

    def read(self, reply: execution_pb2.CallReply) -> Any:
        """Return the result, and release the reply's memory. Raises the error of the reply."""
        if self.tensors is not None:
            return self.call.read(reply, self.tensors)
        memory, self.memory = self.memory, None
        try:
            result = self.call.read(reply, memory)
        except BaseException:
            if memory is not None:
                memory.finish(reply)
            raise
        if memory is not None:
            memory.release()
        return result

    def time_left(self) -> float | None:
        """Return the seconds until the deadline, or None without one; set the request's timeout."""
        if self.deadline is None:
            return None
        seconds = max(self.deadline - time.monotonic(), 0.0)
        self.request.timeout = seconds
        return seconds

    def stay(self, way: DirectWay[InterpreterLane], routes: Routes) -> None:
        """Prefer the interpreter that has refused a direct call when the daemon relays it.

        The interpreter may merely not know the route yet, so another interpreter need not run it.
        The call counts as in flight there from now on, since calls are balanced by these counts.
        Idempotent.
        """
        if self.relayed is None:
            routes.refused(way.route.epoch, way.target.session)
            self.relayed = routes.relayed.begin(way.target.session)

    def leave(self, way: DirectWay[InterpreterLane], routes: Routes, why: Exception) -> None:
        """Turn a failed direct request into one for the daemon, which also asks for a new route.

        ``why`` is the failure: the interpreter's refusal, the end of its lane, or a request that is
        too long for the lane because shared memory had no room.
        """
        request = self.request
        lost = why if isinstance(why, LaneClosedError) else None
        if self.memory is not None:
            if lost is not None:
                self.memory.abandon()
            self.memory.placed.move_inline(request)
            self.memory.release()
            self.memory = None
        if self.tensors is not None:
            self.tensors.begin_again()
        if were_not_kept(why):
            routes.drop(way.route)  # the daemon's reply has another one, if there is any
        elif is_route_right(why) or isinstance(why, MessageTooLargeError):
            pass
        elif lost is None:
            self.stay(way, routes)
            request.preferred_session = way.target.session
        else:
            way.route.without(way.target.session)
            if lost.was_sent:
                request.lost.CopyFrom(way.lost_call(request.id))
        request.operator = self.call.operator
        request.ClearField("kernel")
        request.ClearField("route_epoch")
        request.ClearField("chunks_reply")
        request.wants_route = True

    def pause_before_asking_again(self, error: Exception, wait: DaemonWait) -> float:
        """Return how many seconds to wait before asking the daemon again.

        Raises ``error`` if the call must not be sent again. Marks the request as a repetition if it
        may have run. See Note [A daemon that restarts].
        """
        is_encoded = self._is_encoded
        # Do not repeat programs, which are several calls, nor calls that keep results, whose lease
        # ended with the daemon.
        is_plain = is_encoded and not (self.request.program or self.request.HasField("keep"))
        is_repeatable = is_plain and self.call.retry and self.lost is None
        pause = wait.pause_after(error, is_repeatable=is_repeatable)
        if is_encoded and may_have_run(error):
            self.request.lost.SetInParent()
            self.lost = error
        if self.tensors is not None:
            self.tensors.begin_again()
        return pause

    def find_lost(self, outcome: execution_pb2.CallReply | Exception) -> Exception | None:
        """Return the error after which the daemon may be asked again; None for any other outcome.

        If the daemon refused a repetition, it is the error by which the first reply was lost.
        """
        if isinstance(outcome, Exception):
            error = outcome
        elif outcome.HasField("error"):
            error = error_from_status(outcome.error)
        else:
            return None
        if isinstance(error, InterpreterDiedError) and error.facts.get("daemon") == "lost":
            return self.lost
        return error if has_not_begun(error) or may_have_run(error) else None

    def explain(self, error: Exception) -> Exception:
        """Return the exception to raise to the caller for a transport error."""
        if isinstance(error, NotAdmittedError):
            return UnauthenticatedError(str(error), address=self._address, started="unknown")
        if isinstance(error, LaneClosedError | DaemonUnavailableError | RefusedError):
            return self._explain_break(error)
        if isinstance(error, TimeoutError) and not isinstance(error, OpdispatchError):
            return late_answer_error(self._address, self.call.operator)
        return error

    def _explain_break(
        self, error: LaneClosedError | DaemonUnavailableError | RefusedError
    ) -> Exception:
        if self._is_encoded and self.request.lost.session:
            name, operator = self.request.lost.interpreter, self.call.operator
            return InterpreterDiedError(
                f"interpreter {name} went away while it was running {operator}, and the daemon "
                "cannot be asked why",
                interpreter=name,
                operator=operator,
                daemon="unavailable",
            )
        if isinstance(error, LaneClosedError):
            return lost_connection_error(self._address, str(error))
        if self.lost is not None and not may_have_run(error):
            # The call was about to be sent again, and that has not begun.
            return lost_connection_error(self._address, error.message)
        return error


def is_route_right(why: Exception) -> bool:
    """Return whether an interpreter refused a call although its route was right."""
    return is_without_room(why) or are_values_elsewhere(why) or were_not_kept(why)
