"""Decide which library is to blame for an interpreter's death, for calls, placement and reports.

Drives the policy of ``suspicion`` and ``circuit_breaker``, see Note [Blame]: gathers the facts of a
death, judges it once, logs the verdict, and notifies the parts whose decisions it changes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from opdispatch_server.blame.circuit_breaker import CircuitBreaker
from opdispatch_server.blame.flight_record import KERNEL, Flight, Subject
from opdispatch_server.blame.separation import Separation
from opdispatch_server.blame.suspicion import NO_CULPRIT, Cause, Death, Suspicion, Verdict
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.log_fields import Event, fields
from opdispatch_wire.errors import CircuitOpenError

LOG = logging.getLogger("opdispatch.blame")

# A run that ended this many seconds before a heartbeat without problems is innocent.
CHECK_TAKES = 0.1
# A run that ended at most this many seconds before an interpreter fell silent or unfit is suspect.
RECENT = 2.0


class Blame:
    """Judges deaths, and keeps the resulting records. For use in the event loop only.

    ``sessions`` returns the live interpreters, ``names`` the shared ones, live or about to be
    restarted; ``library_of`` the library that an operator belongs to. ``on_change`` is called when
    the set of libraries that are kept apart, or their interpreters, have changed.
    """

    def __init__(
        self,
        sessions: Callable[[], Iterable[InterpreterSession]],
        names: Callable[[], Sequence[str]],
        library_of: Callable[[str], str],
        on_change: Callable[[], None],
    ) -> None:
        self._sessions = sessions
        self._names = names
        self._library_of = library_of
        self._on_change = on_change
        self._suspicion = Suspicion()
        self._circuits: dict[str, CircuitBreaker] = {}
        # The runs of interpreters that have ended.
        self._past_runs: Counter[Subject] = Counter()
        self.separation = Separation()
        self.is_quiet = True
        """True while no library is suspected, so that no call needs a check."""
        self._is_stopped = False
        # Fires when the time of the next library to be kept apart ends.
        self._timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        """Stop judging: the daemon is about to end all interpreters itself."""
        self._is_stopped = True
        self._set_timer(None)

    # -- deaths ---------------------------------------------------------------------------------

    def judge(self, session: InterpreterSession) -> Verdict:
        """Return the verdict on the end of an interpreter, computed on the first call."""
        if session.verdict is None:
            session.verdict = NO_CULPRIT  # kept if the next lines raise
            session.verdict = self._judge(session)
        if not session.alive:  # the flight record is not needed after the verdict
            session.flight_record = None
        return session.verdict

    def judge_unfit(self, session: InterpreterSession) -> Verdict:
        """Return the verdict on an interpreter that became unfit, and is about to be replaced."""
        since = session.sound_at - CHECK_TAKES
        running = self._running(session)
        recent = self._recent(session, since)
        # A kernel that is still running may be the cause, or one that has ended.
        named = session.named and self._resolved(session.named)
        death = Death(Cause.UNFIT, (), named, [*(f.subject for f in running), *recent])
        session.verdict = self._take_in(session, death)
        return session.verdict

    def _judge(self, session: InterpreterSession) -> Verdict:
        cause = session.cause
        running = self._running(session)
        named = session.named and self._resolved(session.named, running)
        subjects = [flight.subject for flight in running] or [
            self._resolved(subject) for subject in session.cut_off
        ]
        recent: list[Subject] = []
        if not subjects and cause in (Cause.CRASHED, Cause.SILENT):
            recent = self._recent(session, time.monotonic() - session.silence_at_end - RECENT)
        verdict = self._take_in(session, Death(cause, subjects, named, recent))
        if cause is Cause.OVERDUE:  # the overdue call is known, and no other is to blame
            return verdict._replace(calls=frozenset())
        if running:
            accused = [flight.call for flight in running if flight.subject in verdict.shares]
            return verdict._replace(calls=frozenset(accused))
        return verdict

    def _take_in(self, session: InterpreterSession, death: Death) -> Verdict:
        if death.cause is Cause.ORDERLY or self._is_stopped:
            return NO_CULPRIT
        now = time.monotonic()
        verdict = self._suspicion.judge(death, self._runs(session), now)
        if verdict.culprit is not None and verdict.culprit.kind == KERNEL:
            self._circuit_of(verdict.culprit.operator).note_death(now)
        described = verdict.describe()
        if described:
            LOG.error(
                "interpreter %s (pid %d) is lost %s: %s",
                session.name,
                session.pid,
                described,
                session.unfit or session.reason,
                extra=fields(
                    Event.OPERATOR_BLAMED,
                    interpreter=session.name,
                    operator=verdict.culprit.operator if verdict.culprit else "",
                    library=verdict.culprit.library if verdict.culprit else "",
                ),
            )
        self._update(session.name)
        return verdict

    def note_joined(self, name: str, ready: Sequence[str]) -> None:
        """Record that an interpreter has joined, with nothing loaded yet."""
        if self.separation.apart and self.separation.note_joined(name, ready, self._names()):
            self._on_change()

    def refresh(self) -> None:
        """Update after time has passed, or an interpreter has been given up."""
        if self.separation.apart:
            self._update()

    def forget(self, library: str, operators: Iterable[str]) -> None:
        """Forget a library that is gone or has new code: earlier deaths no longer count."""
        self._suspicion.forget(library)
        for operator in operators:
            self._circuits.pop(operator, None)
        for subject in [s for s in self._past_runs if s.library == library]:
            del self._past_runs[subject]
        self._update()

    def is_cell(self, session: InterpreterSession) -> bool:
        """Return whether an interpreter is reserved for libraries that are kept apart."""
        return session.name in self.separation.cells

    # -- calls ----------------------------------------------------------------------------------

    def is_watched(self, library: str, operator: str) -> bool:
        """Return whether an operator's calls must go through the daemon, which checks each."""
        return operator in self._circuits or library in self.separation.apart

    def is_apart(self, library: str) -> bool:
        """Return whether a library is isolated from others, with one call at a time."""
        return library in self.separation.apart

    @contextmanager
    def admitted(self, kernels: Sequence[tuple[str, str]]) -> Iterator[None]:
        """Run the block with a call that runs ``kernels``, each given as library and operator.

        If the block raises, the call did not end, or brought down its interpreter; otherwise the
        call went well, or a kernel raised. Raises CircuitOpenError if calls of one of the operators
        are refused at the moment.
        """
        passed: list[str] = []
        try:
            for operator in dict.fromkeys(operator for _, operator in kernels):
                self._check(operator)
                passed.append(operator)
            yield
        except BaseException:
            for operator in passed:
                if (circuit := self._circuits.get(operator)) is not None:
                    circuit.note_nothing()
            raise
        for operator in passed:
            if (circuit := self._circuits.get(operator)) is not None:
                circuit.note_success()
                if not circuit.deaths:
                    del self._circuits[operator]
        for library, operator in kernels:
            self._suspicion.note_success(Subject(KERNEL, library, operator))
        if kernels:
            self._update()

    def _check(self, operator: str) -> None:
        circuit = self._circuits.get(operator)
        if circuit is None or not (seconds := circuit.try_pass(time.monotonic())):
            return
        raise CircuitOpenError(
            f"{operator} has brought down {circuit.deaths} interpreters in a row; its calls are "
            f"refused for {seconds:.1f} s, and this one never started",
            hint=f"try again in {seconds:.1f} s: one call is tried then, and all if it succeeds",
            operator=operator,
            started="no",
            retry_after=f"{seconds:.3f}",
        )

    # -- descriptions ---------------------------------------------------------------------------

    def trouble_of(self, library: str, operators: Iterable[str]) -> str:
        """Return a library's recent deaths and their consequences, in words; "" if none."""
        now = time.monotonic()
        parts = []
        record = self._suspicion.record_of(library)
        if record is not None and library in self.separation.apart:
            parts.append(
                f"kept apart for {max(record.apart_until - now, 0.0):.0f} s: {record.last} has "
                "brought interpreters down"
            )
        for operator in operators if self._circuits else ():
            circuit = self._circuits.get(operator)
            if circuit is not None and circuit.open_until > now:
                parts.append(f"{operator} is refused for {circuit.open_until - now:.0f} s")
        return "; ".join(parts)

    # -- inside ---------------------------------------------------------------------------------

    def _circuit_of(self, operator: str) -> CircuitBreaker:
        return self._circuits.setdefault(operator, CircuitBreaker())

    def _update(self, died: str = "") -> None:
        now = time.monotonic()
        before = set(self.separation.apart)
        changed = self.separation.update(self._suspicion.apart(now), self._names(), died)
        self.is_quiet = not self._circuits and not self.separation.apart
        for library in sorted(self.separation.apart - before):
            cells = ", ".join(sorted(self.separation.cells))
            where = f", in {cells} only" if cells else ""
            LOG.warning(
                "library %s is kept apart from others%s",
                library,
                where,
                extra=fields(Event.LIBRARY_APART, library=library),
            )
        for library in sorted(before - self.separation.apart):
            LOG.info(
                "library %s is no longer kept apart from others",
                library,
                extra=fields(Event.LIBRARY_CLEARED, library=library),
            )
        end = self._suspicion.next_end(now)
        self._set_timer(None if end is None else end - now)
        if changed:
            self._on_change()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None and not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.refresh)

    def _running(self, session: InterpreterSession) -> list[Flight]:
        record = session.flight_record
        if record is None:
            return []
        return [f._replace(subject=self._resolved(f.subject)) for f in record.running()]

    def _recent(self, session: InterpreterSession, since: float) -> list[Subject]:
        record = session.flight_record
        if record is None:
            return []
        return [self._resolved(each.subject) for each in record.ended() if each.ended >= since]

    def _runs(self, gone: InterpreterSession) -> Counter[Subject]:
        """Return how many runs of each subject have ended well so far."""
        if gone.flight_record is not None:
            self._past_runs.update(self._landings(gone))
        runs = self._past_runs.copy()
        for session in self._sessions():
            if session is not gone and session.flight_record is not None:
                runs.update(self._landings(session))
        return runs

    def _landings(self, session: InterpreterSession) -> dict[Subject, int]:
        assert session.flight_record is not None, "the caller has looked"
        found: Counter[Subject] = Counter()
        for each in session.flight_record.ended():
            found[self._resolved(each.subject)] += each.runs
        return found

    def _resolved(self, subject: Subject, running: Iterable[Flight] = ()) -> Subject:
        """Return the subject with its library, if only the operator was given."""
        if subject.library:
            return subject
        for flight in running:
            if flight.subject.operator == subject.operator and flight.subject.library:
                return flight.subject
        return subject._replace(library=self._library_of(subject.operator))
