"""The kernels that interpreters are running for calls, from start to reply.

A run lasts until its interpreter has replied or ended, even if the caller has given up: only then
is its slot free. The reply to a caller that has given up is discarded.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from opdispatch_server.blame.flight_record import KERNEL, Subject, call_key
from opdispatch_server.blame.suspicion import Verdict
from opdispatch_server.call_context import CallContext
from opdispatch_server.daemon.calls.kernel_run import HeldSlot, KernelRun
from opdispatch_server.daemon.calls.kernel_timeout import KernelTimeout, StopInterpreter
from opdispatch_server.daemon.calls.lost_replies import LostReplies, busy_error
from opdispatch_server.daemon.calls.nested import RunningKernel
from opdispatch_server.daemon.calls.profile_events import note_sent
from opdispatch_server.daemon.event_loop.shielded import shielded
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_wire.lanes.lane_messages import LaneClosedError
from opdispatch_wire.lanes.pending_calls import Decode
from opdispatch_wire.v1 import execution_pb2


class KernelRuns:
    """All runs, by number. For use in the event loop only.

    Direct calls run without the daemon; for the calls that they make, all direct calls of one
    interpreter count as one run. ``stop_interpreter`` ends the process of an interpreter; ``judge``
    returns which call brought down an ended one; ``timeout`` limits a kernel's run, in seconds, if
    not None.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        stop_interpreter: StopInterpreter,
        judge: Callable[[InterpreterSession], Verdict],
        timeout: float | None,
    ) -> None:
        self.timeout = KernelTimeout(timeout, stop_interpreter)
        self.lost = LostReplies(sessions, judge, self.timeout)
        self._runs: dict[int, KernelRun] = {}
        self._answers: set[asyncio.Future[execution_pb2.CallReply]] = set()
        self._direct_calls: dict[int, RunningKernel] = {}

    def find(self, number: int) -> RunningKernel | None:
        """Return the kernel of the run with that number, if it has not ended."""
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
        """Count, during the block, a call made by the kernel of ``parent``."""
        parent.nested_calls.begin()
        try:
            yield
        finally:
            self.end_nested_in(parent)

    def end_nested_in(self, parent: RunningKernel) -> None:
        """Count a nested call of the kernel of ``parent`` as ended."""
        parent.nested_calls.end()
        run = self._runs.get(parent.number)
        if run is not None and run.timer is None:
            self.timeout.watch(run)

    def begin(
        self,
        session: InterpreterSession,
        request: execution_pb2.CallRequest,
        context: CallContext,
        slot: HeldSlot | None,
        on_end: Callable[[execution_pb2.CallReply | None], None],
        on_move: Callable[[], None] | None = None,
    ) -> KernelRun:
        """Begin a run over a local lane, like ``run`` but without a task that waits for it.

        ``on_end`` is called once the slot is free again, with the reply, which may be an error, or
        with None if the interpreter has gone: see ``explain``. ``on_move`` is called when the
        interpreter becomes busy with another call and this one should move. Raises LaneClosedError
        and MessageTooLargeError, and then nothing has begun.
        """
        run = KernelRun(request.operator, session, slot, context.depth)
        end = functools.partial(self._end_begun, run, slot, on_end)
        try:
            session.call_then(request, context.for_run(run.number), end)
        except BaseException:
            _release(slot)
            raise
        self._note_begun(run, request.id, on_move)
        return run

    def begin_planned(
        self,
        session: InterpreterSession,
        operator: str,
        encode: Callable[[int, int], bytes],
        decode: Decode,
        slot: HeldSlot,
        on_end: Callable[[Any], None],
        on_move: Callable[[], None] | None = None,
    ) -> KernelRun:
        """Begin a run as ``begin`` does, with a request that ``encode`` writes.

        ``encode`` gets the run number and the call's id. ``on_end`` is called with the reply as
        ``decode`` returns it, or otherwise as by ``begin``.
        """
        run = KernelRun(operator, session, slot)
        end = functools.partial(self._end_begun, run, slot, on_end)
        try:
            number = session.call_planned(functools.partial(encode, run.number), decode, end)
        except BaseException:
            _release(slot)
            raise
        self._note_begun(run, number, on_move)
        return run

    def _note_begun(self, run: KernelRun, number: int, on_move: Callable[[], None] | None) -> None:
        run.on_move = on_move
        run.call = call_key(0, number)
        self._runs[run.number] = run
        self.timeout.watch(run)

    def _end_begun(
        self, run: KernelRun, slot: HeldSlot | None, on_end: Callable[[Any], None], result: Any
    ) -> None:
        is_cut_off = isinstance(result, LaneClosedError)
        self._end(run, slot, is_cut_off=is_cut_off)
        on_end(None if is_cut_off else result)

    def _end(self, run: KernelRun, slot: HeldSlot | None, *, is_cut_off: bool) -> None:
        if is_cut_off and not run.is_ahead:
            run.session.cut_off += [Subject(KERNEL, "", each) for each in run.operators]
        del self._runs[run.number]
        run.on_move = None  # breaks a cycle: it refers to the call, and the call to the run
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
        """Run a kernel in the interpreter; release the slot when the kernel has ended.

        ``operators`` are those of a program. The wait for a run that ``may_move`` ends when its
        interpreter becomes busy with another call; it then raises InterpreterDiedError, and the
        call can run in another interpreter. ``on_end`` is called with the reply in any case, even
        if it is no longer awaited, or with None if there is none.

        An InterpreterDiedError has ``facts["culprit"]``, the operator that brought the interpreter
        down, if known; and ``facts["suspect"]`` if it may have been this call: "yes" if it was,
        "perhaps" if it may also have been another call or another process.

        The interpreter's own reply may be an error. Raises DeadlineExceededError,
        KernelTimeoutError, InterpreterDiedError and MessageTooLargeError.
        """
        run = KernelRun(request.operator, session, slot, context.depth, operators)
        note_sent(request)
        try:
            answer = session.call(request, context.for_run(run.number))
        except LaneClosedError as error:
            _release(slot)
            await session.explain_end()
            raise self.lost.explain_end(run, was_sent=error.was_sent) from error
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
            # Keeps asyncio from reporting an error that is no longer awaited.
            if not answer.cancelled() and answer.exception() is None:
                reply = answer.result()
            if on_end is not None:
                on_end(reply)

        answer.add_done_callback(end)
        self.timeout.watch(run)
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
            raise self.lost.explain_end(run) from error
        except asyncio.CancelledError as error:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise  # the client has gone, or has cancelled the call
            raise self.lost.explain_end(run) from error
        finally:
            run.is_abandoned = not answer.done()
            del answer  # its error has this frame in its traceback: a cycle

    def move_from(self, session: InterpreterSession) -> None:
        """Move all calls that may run elsewhere: a kernel holds this interpreter's lock."""
        for run in list(self._runs.values()):
            if run.session is not session or not session.busy_operators.isdisjoint(run.operators):
                continue
            if run.moved is not None and not run.moved.done():
                run.moved.set_result(None)
            elif run.on_move is not None:
                run.on_move()


def _release(slot: HeldSlot | None) -> None:
    if slot is not None:
        slot.release()
