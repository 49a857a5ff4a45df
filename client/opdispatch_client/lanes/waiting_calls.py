"""Find direct calls that wait because a kernel of another operator blocks their interpreter.

No I/O: ``busy_watch`` and ``async_busy_watch`` ask the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opdispatch_client.lanes.direct_way import DirectWay, InterpreterLane
from opdispatch_client.listings import Interpreter
from opdispatch_wire.v1 import execution_pb2

LOOK_SECONDS = 0.5
"""Interval of the checks, and wait of a call before the daemon is first queried, in seconds."""

# The daemon is queried again about a call after this fraction of the time that it has waited.
_RARER = 0.25


class WaitingCall:
    """A call that may move to another interpreter.

    ``give_up`` ends its wait; it is None before the call has begun and after it has ended.
    """

    __slots__ = ("began", "give_up", "interpreter", "look_at", "operator")

    def __init__(self, interpreter: str, operator: str) -> None:
        self.interpreter = interpreter
        self.operator = operator
        self.give_up: Callable[[], object] | None = None
        self.began = time.monotonic()
        self.look_at = self.began + LOOK_SECONDS


def may_move(way: DirectWay[InterpreterLane], request: execution_pb2.CallRequest) -> bool:
    """Return whether a call may run twice, so that it can be sent to another interpreter as well.

    A call that keeps results may not: it would keep them twice, under the same ids.
    """
    if request.HasField("keep"):
        return False
    return way.route.is_repeatable and (request.retry or not request.HasField("retry"))


def waiting_call(way: DirectWay[InterpreterLane]) -> WaitingCall:
    """Return a WaitingCall for a call that is about to be sent that way."""
    return WaitingCall(way.target.interpreter, way.route.operator)


class WaitingCalls:
    """A set of calls. Thread-safe: each change is one atomic operation, and readers copy it."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[WaitingCall, None] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __contains__(self, call: WaitingCall) -> bool:
        return call in self._calls

    def add(self, call: WaitingCall) -> None:
        """Add a call that has been sent."""
        self._calls[call] = None

    def remove(self, call: WaitingCall) -> None:
        """Remove a call that has ended. Idempotent."""
        self._calls.pop(call, None)
        call.give_up = None  # a closure that would keep the arguments alive

    def is_look_due(self, now: float) -> bool:
        """Return whether to query the daemon now; the interval grows while a call waits."""
        due = [call for call in self._calls.copy() if call.look_at <= now]
        for call in due:
            call.look_at = now + max(LOOK_SECONDS, _RARER * (now - call.began))
        return bool(due)

    def give_up_where_busy(self, interpreters: Iterable[Interpreter]) -> None:
        """End the wait of calls whose interpreter's GIL is held by kernels of other operators."""
        busy = {each.name: each.busy_operators for each in interpreters if each.busy_operators}
        for call in self._calls.copy() if busy else ():
            operators = busy.get(call.interpreter, (call.operator,))
            give_up = call.give_up
            if give_up is not None and call.operator not in operators:
                self.remove(call)
                give_up()
