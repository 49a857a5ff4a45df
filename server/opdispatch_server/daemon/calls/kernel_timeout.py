"""Stop interpreters whose kernels run longer than the timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from opdispatch_server.blame.flight_record import KERNEL, Subject
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.calls.kernel_run import KernelRun
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_wire.errors import KernelTimeoutError
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2

StopInterpreter = Callable[[InterpreterSession, str, Cause, Subject | None], None]


class KernelTimeout:
    """The limit on a kernel's run, in seconds, or None. For use in the event loop only.

    ``stop_interpreter`` ends the process of an interpreter. The time that a kernel spends in its
    own nested calls does not count.
    """

    def __init__(self, seconds: float | None, stop_interpreter: StopInterpreter) -> None:
        self._seconds = seconds
        self._stop_interpreter = stop_interpreter
        self._overdue_direct_calls: WeakKeyDictionary[InterpreterSession, tuple[int, int]]
        self._overdue_direct_calls = WeakKeyDictionary()

    def watch(self, run: KernelRun) -> None:
        """Check a run again when its time may be up."""
        if self._seconds is not None and not run.is_overdue:
            remaining = max(self._seconds - run.own_seconds, 0.0)
            run.timer = asyncio.get_running_loop().call_later(remaining, self._check, run)

    def _check(self, run: KernelRun) -> None:
        run.timer = None
        timeout = self._seconds
        if timeout is None:
            return
        if run.nested_calls.is_running or not run.session.alive:
            return  # watched again when the nested calls have ended
        if run.own_seconds < timeout:
            self.watch(run)
            return
        run.is_overdue = True
        self._stop(run.session, run.operator, timeout)

    def stop_overdue(self, session: InterpreterSession, call: interpreter_pb2.OverdueCall) -> None:
        """Stop an interpreter that reports a direct call's kernel as overdue."""
        if self._seconds is not None and session.alive:
            self._overdue_direct_calls[session] = (call.lane, call.id)
            self._stop(session, call.operator, self._seconds)

    def was_overdue(self, session: InterpreterSession, call: execution_pb2.LostCall) -> bool:
        """Return whether an interpreter was stopped because of that direct call."""
        return self._overdue_direct_calls.get(session) == (call.lane, call.id)

    def error(self, session: InterpreterSession, operator: str) -> KernelTimeoutError:
        """Return the error for a call whose kernel ran too long."""
        return KernelTimeoutError(
            f"the kernel of {operator} ran for longer than {self._seconds:g} s in interpreter "
            f"{session.name}, which has been stopped",
            hint="raise the limit with `opdispatch serve --kernel-timeout`",
            operator=operator,
            interpreter=session.name,
            seconds=f"{self._seconds:g}",
        )

    def _stop(self, session: InterpreterSession, operator: str, timeout: float) -> None:
        self._stop_interpreter(
            session,
            f"its kernel of {operator} ran for longer than {timeout:g} s",
            Cause.OVERDUE,
            Subject(KERNEL, "", operator),
        )
