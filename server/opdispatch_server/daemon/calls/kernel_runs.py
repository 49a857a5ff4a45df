"""The kernels that interpreters are running for calls, and the end of those that run too long.

A run lasts until its interpreter has answered, or is gone, whatever has become of the caller:
only then is the slot free that it has taken. The answer for a caller that has given up is
thrown away.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from google.rpc import code_pb2

from opdispatch_server.blame.flight_record import KERNEL, Subject, call_key
from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.profile_events import note_sent
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_server.nested_time import NestedTime
from opdispatch_wire.errors import (
    DeadlineExceededError,
    InterpreterDiedError,
    KernelTimeoutError,
)
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2, interpreter_pb2

RUN_BYTES = 16
"""The number of a run authorizes calls in its name, which do not queue."""


class HeldSlot(Protocol):
    """The slots that a run gives back when it ends: one, or several."""

    is_ahead: bool
    began: float

    def release(self) -> None:
        """Release the slot to the next call."""


StopInterpreter = Callable[[InterpreterSession, str, Cause, Subject | None], None]


class RunningKernel:
    """A kernel that is running, as the calls see it that it makes."""

    def __init__(self, operator: str, depth: int = 0) -> None:
        self.number = secrets.randbits(8 * RUN_BYTES)
        self.operator = operator
        self.depth = depth
        self.is_abandoned = False  # its caller waits no more
        self.nested_calls = NestedTime()


class KernelRun(RunningKernel):
    """One run of a kernel in an interpreter. Belongs to the event loop."""

    def __init__(
        self,
        operator: str,
        session: InterpreterSession,
        slot: HeldSlot | None,
        depth: int = 0,
        operators: Collection[str] = (),
    ) -> None:
        super().__init__(operator, depth)
        self.operators = operators or (operator,)
        self.session = session
        self._slot = slot
        self.is_overdue = False
        # What is done when its interpreter becomes busy with another call, if it may move.
        self.on_move: Callable[[], None] | None = None
        self.moved: asyncio.Future[None] | None = None
        self.call = 0
        """As the interpreter's flight record has it."""
        self.timer: asyncio.TimerHandle | None = None
        self._began = time.monotonic()

    @property
    def is_ahead(self) -> bool:
        """Whether it waits in the interpreter for another one to end."""
        return self._slot is not None and self._slot.is_ahead

    def late_error(self) -> DeadlineExceededError:
        """Return the error of a caller whose deadline has passed."""
        what = "about to run" if self.is_ahead else "running"
        return DeadlineExceededError(
            f"the deadline passed while interpreter {self.session.name} was {what} {self.operator}",
            operator=self.operator,
            interpreter=self.session.name,
            started="unknown" if self.is_ahead else "yes",
        )

    @property
    def own_seconds(self) -> float:
        """How long its kernel has run, without the calls that it made through the daemon."""
        if self.is_ahead:
            return 0.0
        return self.nested_calls.own_seconds(self._slot.began if self._slot else self._began)


class KernelRuns:
    """All runs, by number. Belongs to the event loop.

    Direct calls run without the daemon; for what they call, those of one interpreter are one run.
    ``stop_interpreter`` ends the process of an interpreter; ``judge`` says who has brought down
    one that has ended; ``timeout`` is how many seconds a kernel may run, None: for ever.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        stop_interpreter: StopInterpreter,
        judge: Callable[[InterpreterSession], Verdict],
        timeout: float | None,
    ) -> None:
        self._sessions = sessions
        self._stop_interpreter = stop_interpreter
        self._judge = judge
        self._timeout = timeout
        self._runs: dict[int, KernelRun] = {}
        self._answers: set[asyncio.Future[execution_pb2.CallReply]] = set()
        self._overdue_direct_calls: WeakKeyDictionary[InterpreterSession, tuple[int, int]]
        self._overdue_direct_calls = WeakKeyDictionary()
        self._direct_calls: dict[int, RunningKernel] = {}

    def find(self, number: int) -> RunningKernel | None:
        """Return the run of that number, if its kernel has not ended."""
        return self._runs.get(number) or self._direct_calls.get(number)

    def begin_direct_calls(self, session: InterpreterSession) -> int:
        """Return the number for calls made by kernels of direct calls, until the session ends."""
        run = RunningKernel("a direct call")
        self._direct_calls[run.number] = run

        def forget() -> None:
            del self._direct_calls[run.number]

        session.at_end(forget)
        return run.number

    @contextmanager
    def nested_in(self, parent: RunningKernel) -> Iterator[None]:
        """Count a call in the block that the kernel of ``parent`` has made."""
        parent.nested_calls.begin()
        try:
            yield
        finally:
            parent.nested_calls.end()
            run = self._runs.get(parent.number)
            if run is not None and run.timer is None:
                self._watch(run)

    def begin(
        self,
        session: InterpreterSession,
        request: execution_pb2.CallRequest,
        context: CallContext,
        slot: HeldSlot,
        on_end: Callable[[execution_pb2.CallReply | None], None],
        on_move: Callable[[], None] | None = None,
    ) -> KernelRun:
        """Begin a run like ``run``, over a local lane, for a caller that waits in no task.

        ``on_end`` is called with the reply, which may be an error, when the slot is free again;
        None if the interpreter has gone: see ``explain``. ``on_move`` is called when it becomes
        busy with another call, and this one should run elsewhere. Raises LaneClosedError and
        MessageTooLargeError, and then nothing has begun.
        """
        run = KernelRun(request.operator, session, slot, context.depth)
        run.on_move = on_move

        def end(result: execution_pb2.CallReply | LaneClosedError) -> None:
            self._end(run, slot, is_cut_off=isinstance(result, LaneClosedError))
            on_end(None if isinstance(result, LaneClosedError) else result)

        try:
            session.call_then(request, context.for_run(run.number), end)
        except BaseException:
            _release(slot)
            raise
        run.call = call_key(0, request.id)
        self._runs[run.number] = run
        self._watch(run)
        return run

    async def explain(self, run: KernelRun) -> KernelTimeoutError | InterpreterDiedError:
        """Return why a run has had no reply; wait until that is known."""
        if run.session.unfit and run.session.alive:
            return unfit_error(run.session, run.operator)
        if run.session.busy and run.session.alive:
            return busy_error(run.session, run.operator)
        await run.session.explain_end()
        return self._explain_end(run)

    def _end(self, run: KernelRun, slot: HeldSlot | None, *, is_cut_off: bool) -> None:
        if is_cut_off and not run.is_ahead:
            run.session.cut_off += [Subject(KERNEL, "", each) for each in run.operators]
        del self._runs[run.number]
        run.on_move = None  # it has the call, and the call has the run
        if run.timer is not None:
            run.timer.cancel()
        _release(slot)

    async def run(
        self,
        session: InterpreterSession,
        request: execution_pb2.CallRequest,
        context: CallContext,
        slot: HeldSlot | None,
        on_end: Callable[[execution_pb2.CallReply | None], None] | None = None,
        operators: Collection[str] = (),
        *,
        may_move: bool = False,
    ) -> execution_pb2.CallReply:
        """Run a kernel in the interpreter; give the slot back when the kernel has ended.

        ``operators`` are those of a program. One that ``may_move`` is waited for no more when its
        interpreter becomes busy with another one: InterpreterDiedError, and the call can run
        in another one. ``on_end`` is called with the reply then, even if it is not awaited;
        None if there is none.

        An InterpreterDiedError has ``facts["culprit"]``, the operator that has brought down the
        interpreter, where that is known; and ``facts["suspect"]`` if it may have been this one:
        "yes" if it was, "perhaps" if it may have been another one or a process from outside.

        The interpreter's own answer may be an error. Raises DeadlineExceededError,
        KernelTimeoutError, InterpreterDiedError and MessageTooLargeError.
        """
        run = KernelRun(request.operator, session, slot, context.depth, operators)
        note_sent(request)
        try:
            answer = session.call(request, context.for_run(run.number))
        except LaneClosedError as error:
            _release(slot)
            await session.explain_end()
            raise self._explain_end(run, was_sent=error.was_sent) from error
        except BaseException:
            _release(slot)
            raise
        run.call = call_key(0, request.id)
        self._runs[run.number] = run
        self._answers.add(answer)

        def end(answer: asyncio.Future[execution_pb2.CallReply]) -> None:
            self._answers.discard(answer)
            is_cut_off = not answer.cancelled() and answer.exception() is not None
            self._end(run, slot, is_cut_off=is_cut_off)
            reply = None
            # An error that is not awaited need not be known.
            if not answer.cancelled() and answer.exception() is None:
                reply = answer.result()
            if on_end is not None:
                on_end(reply)

        answer.add_done_callback(end)
        self._watch(run)
        try:
            async with asyncio.timeout(context.timeout):
                if not may_move:
                    return await shielded(answer)
                run.moved = asyncio.get_running_loop().create_future()
                moved = run.moved
                either: set[asyncio.Future[Any]] = {answer, moved}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise busy_error(session, run.operator)
                return answer.result()
        except TimeoutError as error:
            raise run.late_error() from error
        except LaneClosedError as error:
            await session.explain_end()
            raise self._explain_end(run) from error
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise  # our client has gone, or gives up
            raise self._explain_end(run) from error
        finally:
            run.is_abandoned = not answer.done()
            del answer  # its error has come through here, and has this frame

    def _watch(self, run: KernelRun) -> None:
        """Look at a run again when its time may be up."""
        if self._timeout is not None and not run.is_overdue:
            remaining = max(self._timeout - run.own_seconds, 0.0)
            run.timer = asyncio.get_running_loop().call_later(remaining, self._check, run)

    def _check(self, run: KernelRun) -> None:
        run.timer = None
        timeout = self._timeout
        if timeout is None:
            return
        if run.nested_calls.is_running or not run.session.alive:
            return  # watched again when they have ended
        if run.own_seconds < timeout:
            self._watch(run)
            return
        run.is_overdue = True
        self._stop(run.session, run.operator, timeout)

    def stop_overdue(self, session: InterpreterSession, call: interpreter_pb2.OverdueCall) -> None:
        """Stop an interpreter that says so itself of a direct call's kernel."""
        if self._timeout is not None and session.alive:
            self._overdue_direct_calls[session] = (call.lane, call.id)
            self._stop(session, call.operator, self._timeout)

    def move_from(self, session: InterpreterSession) -> None:
        """Move all calls that may run in another interpreter: a kernel keeps this one's lock."""
        for run in list(self._runs.values()):
            if run.session is not session or not session.busy_operators.isdisjoint(run.operators):
                continue
            if run.moved is not None and not run.moved.done():
                run.moved.set_result(None)
            elif run.on_move is not None:
                run.on_move()

    def _stop(self, session: InterpreterSession, operator: str, timeout: float) -> None:
        self._stop_interpreter(
            session,
            f"its kernel of {operator} ran for longer than {timeout:g} s",
            Cause.OVERDUE,
            Subject(KERNEL, "", operator),
        )

    async def explain_lost(
        self, call: execution_pb2.LostCall, operator: str
    ) -> KernelTimeoutError | InterpreterDiedError:
        """Return the outcome of a direct call that never had a reply; wait until it is known."""
        session = self._sessions.find_number(call.session)
        doing = f"running {operator}"
        if session is not None and not session.busy:
            await session.explain_end()
            if self._overdue_direct_calls.get(session) == (call.lane, call.id):
                return self._timeout_error(session, operator)
        if session is None or session.alive:
            name = session.name if session is not None else call.interpreter[:64]
            return InterpreterDiedError(
                f"the connection to interpreter {name} was lost while it was {doing}",
                interpreter=name,
                operator=operator,
            )
        key = call_key(call.lane, call.id)
        return self._explain_death(session, operator, doing, (operator,), key)

    def _explain_end(
        self, run: KernelRun, *, was_sent: bool = True
    ) -> KernelTimeoutError | InterpreterDiedError:
        session, operator = run.session, run.operator
        if run.is_overdue:
            return self._timeout_error(session, operator)
        if not was_sent:
            return session.death(f"about to run {operator}", started="no", operator=operator)
        doing = f"running {operator}"
        return self._explain_death(session, operator, doing, run.operators, run.call)

    def _explain_death(
        self,
        session: InterpreterSession,
        operator: str,
        doing: str,
        operators: Collection[str],
        call: int,
    ) -> KernelTimeoutError | InterpreterDiedError:
        verdict = self._judge(session)
        culprit = verdict.culprit
        is_accused = verdict.accuses_call(operators, call)
        is_culprit = is_accused and culprit is not None
        if is_culprit and verdict.cause is Cause.LOCKED:
            return KernelTimeoutError(
                f"{session.reason} in interpreter {session.name}, which has been stopped",
                hint="raise the limit with `opdispatch serve --lock-timeout`, or let the kernel "
                "release the lock",
                operator=operator,
                interpreter=session.name,
                suspect="yes",
            )
        facts = {"operator": operator}
        if culprit is not None:
            facts["culprit"] = culprit.operator or str(culprit)
        if is_accused:
            facts["suspect"] = "yes" if is_culprit and verdict.is_proven else "perhaps"
        elif culprit is not None:
            doing = f"{doing}, because of {culprit}"
        return session.death(doing, **facts)

    def _timeout_error(self, session: InterpreterSession, operator: str) -> KernelTimeoutError:
        return KernelTimeoutError(
            f"the kernel of {operator} ran for longer than {self._timeout:g} s in interpreter "
            f"{session.name}, which has been stopped",
            hint="raise the limit with `opdispatch serve --kernel-timeout`",
            operator=operator,
            interpreter=session.name,
            seconds=f"{self._timeout:g}",
        )


def _release(slot: HeldSlot | None) -> None:
    if slot is not None:
        slot.release()


def busy_error(session: InterpreterSession, operator: str, **facts: str) -> InterpreterDiedError:
    """Return the error of a call that a busy interpreter does not get to.

    It should run in another.
    """
    return InterpreterDiedError(
        f"interpreter {session.name} is busy: {session.busy}",
        interpreter=session.name,
        operator=operator,
        **facts,
    )


def unfit_error(session: InterpreterSession, operator: str) -> InterpreterDiedError:
    """Return the error of a call refused by an interpreter that is about to be replaced."""
    return InterpreterDiedError(
        f"interpreter {session.name} is being replaced: {session.unfit}",
        interpreter=session.name,
        operator=operator,
        started="no",
    )


def is_refused_as_unfit(reply: execution_pb2.CallReply, session: InterpreterSession) -> bool:
    """Return whether an interpreter has refused a call as unfit to run kernels.

    Record it, if so.
    """
    if not reply.HasField("error") or reply.error.code != code_pb2.UNAVAILABLE:
        return False
    problem = error_from_status(reply.error).facts.get("unfit", "")
    if problem:
        session.note_unfit(problem)
    return bool(problem)
