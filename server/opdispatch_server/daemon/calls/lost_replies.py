"""Errors for calls without a reply: the reason, and the call to blame."""

from __future__ import annotations

from collections.abc import Callable, Collection

from google.rpc import code_pb2

from opdispatch_server.blame.flight_record import call_key
from opdispatch_server.blame.suspicion import Cause, Verdict
from opdispatch_server.daemon.calls.kernel_run import KernelRun
from opdispatch_server.daemon.calls.kernel_timeout import KernelTimeout
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.daemon.interpreters.sessions import InterpreterSessions
from opdispatch_wire.errors import InterpreterDiedError, KernelTimeoutError
from opdispatch_wire.status import error_from_status
from opdispatch_wire.v1 import execution_pb2


class LostReplies:
    """Creates the errors of calls whose interpreter has ended, or is too busy to wait for.

    ``judge`` returns which call brought down an ended interpreter.
    """

    def __init__(
        self,
        sessions: InterpreterSessions,
        judge: Callable[[InterpreterSession], Verdict],
        timeout: KernelTimeout,
    ) -> None:
        self._sessions = sessions
        self._judge = judge
        self._timeout = timeout

    async def explain(self, run: KernelRun) -> KernelTimeoutError | InterpreterDiedError:
        """Wait until the cause is known, and return the error of a run that had no reply."""
        if run.session.unfit and run.session.alive:
            return unfit_error(run.session, run.operator)
        if run.session.busy and run.session.alive:
            return busy_error(run.session, run.operator)
        await run.session.explain_end()
        return self.explain_end(run)

    async def explain_direct(
        self, call: execution_pb2.LostCall, operator: str
    ) -> KernelTimeoutError | InterpreterDiedError:
        """Wait until the cause is known, and return the error of a direct call without a reply.

        It was sent directly to an interpreter or, if none is named, to a previous daemon.
        """
        if not call.session:
            return InterpreterDiedError(
                f"the connection to the daemon was lost while it was running {operator}",
                operator=operator,
                daemon="lost",
            )
        session = self._sessions.find_number(call.session)
        doing = f"running {operator}"
        if session is not None and not session.busy:
            await session.explain_end()
            if self._timeout.was_overdue(session, call):
                return self._timeout.error(session, operator)
        if session is None or session.alive:
            name = session.name if session is not None else call.interpreter[:64]
            return InterpreterDiedError(
                f"the connection to interpreter {name} was lost while it was {doing}",
                interpreter=name,
                operator=operator,
            )
        key = call_key(call.lane, call.id)
        return self._explain_death(session, operator, doing, (operator,), key)

    def explain_end(
        self, run: KernelRun, *, was_sent: bool = True
    ) -> KernelTimeoutError | InterpreterDiedError:
        """Return the error of a run without a reply, once its interpreter's end is explained."""
        session, operator = run.session, run.operator
        if run.is_overdue:
            return self._timeout.error(session, operator)
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


def busy_error(session: InterpreterSession, operator: str, **facts: str) -> InterpreterDiedError:
    """Return the error of a call that a busy interpreter cannot get to.

    The call should run in another interpreter.
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
    """Return whether an interpreter refused a call because it is unfit to run kernels.

    If so, record it.
    """
    if not reply.HasField("error") or reply.error.code != code_pb2.UNAVAILABLE:
        return False
    facts = error_from_status(reply.error).facts
    problem = facts.get("unfit", "")
    if problem:
        # This may arrive before the interpreter's own report.
        session.note_unfit(problem, facts.get("unfit_after", ""))
    return bool(problem)
