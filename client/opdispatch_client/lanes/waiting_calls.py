"""Which direct calls of a session wait where a kernel of another operator keeps them from running.

No I/O: ``busy_watch`` and ``async_busy_watch`` ask the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opdispatch_client.lanes.direct_way import DirectWay, InterpreterLane
from opdispatch_client.listings import Interpreter
from opdispatch_wire.v1 import execution_pb2

LOOK_SECONDS = 0.5
"""How often it is looked for calls that have taken so long, and what keeps them is asked for."""

# After this part of the time for which a call has waited, the daemon is asked again.
_RARER = 0.25


class WaitingCall:
    """One call that may move to another interpreter.

    ``give_up`` ends its wait; None: it has not begun, or is over.
    """

    __slots__ = ("began", "give_up", "interpreter", "look_at", "operator")

    def __init__(self, interpreter: str, operator: str) -> None:
        self.interpreter = interpreter
        self.operator = operator
        self.give_up: Callable[[], object] | None = None
        self.began = time.monotonic()
        self.look_at = self.began + LOOK_SECONDS


def may_move(way: DirectWay[InterpreterLane], request: execution_pb2.CallRequest) -> bool:
    """Return whether a call may run twice, so that it need not wait where it has been sent.

    Not one that keeps results: it would keep them twice, under the same ids.
    """
    if request.HasField("keep"):
        return False
    return way.route.is_repeatable and (request.retry or not request.HasField("retry"))


def waiting_call(way: DirectWay[InterpreterLane]) -> WaitingCall:
    """Return what stands for a call that goes that way now."""
    return WaitingCall(way.target.interpreter, way.route.operator)


class WaitingCalls:
    """Any thread may use it: each change is one step, and readers use a copy."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[WaitingCall, None] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def __contains__(self, call: WaitingCall) -> bool:
        return call in self._calls

    def add(self, call: WaitingCall) -> None:
        """Add a call that is waited for from now on."""
        self._calls[call] = None

    def remove(self, call: WaitingCall) -> None:
        """Remove a call, if it is there: it is waited for no more."""
        self._calls.pop(call, None)
        call.give_up = None  # which knows the arguments

    def is_look_due(self, now: float) -> bool:
        """Return whether the daemon is to be asked: more and more rarely for the same call."""
        due = [call for call in self._calls.copy() if call.look_at <= now]
        for call in due:
            call.look_at = now + max(LOOK_SECONDS, _RARER * (now - call.began))
        return bool(due)

    def give_up_where_busy(self, interpreters: Iterable[Interpreter]) -> None:
        """End the waits for interpreters whose lock a kernel of another operator keeps."""
        busy = {each.name: each.busy_operators for each in interpreters if each.busy_operators}
        for call in self._calls.copy() if busy else ():
            operators = busy.get(call.interpreter, (call.operator,))
            give_up = call.give_up
            if give_up is not None and call.operator not in operators:
                self.remove(call)
                give_up()
