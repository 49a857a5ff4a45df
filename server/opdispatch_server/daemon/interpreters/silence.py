"""Decide whether an interpreter that sends no heartbeats is busy or lost.

An interpreter sends its heartbeats from its event loop, which cannot run while a kernel or an
import holds Python's interpreter lock. The flight record says whether something is running. If so,
the interpreter is *busy*: it is given no new calls, and its calls are moved to others, until it
sends a heartbeat again or a limit has passed: the limit for holding the lock, or that of the
import. If nothing is running, or the process was stopped, it is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from weakref import WeakKeyDictionary

from opdispatch_server.blame.flight_record import KERNEL, Flight, Subject
from opdispatch_server.blame.lock_holder import LockHolder
from opdispatch_server.blame.suspicion import Cause
from opdispatch_server.daemon.interpreters.session import InterpreterSession
from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.interpreters")

StopInterpreter = Callable[[InterpreterSession, str, Cause, Subject | None], None]


class SilentInterpreters:
    """Decides whether silent interpreters are busy or lost. For use in the event loop only.

    ``heartbeat`` is the interval of heartbeats and ``lock_timeout`` how long a kernel may hold the
    lock, in seconds; ``stop`` ends an interpreter, ``on_change`` is called when one becomes busy or
    no longer is, and ``on_busy`` with one that has become busy.
    """

    def __init__(
        self,
        heartbeat: float,
        lock_timeout: float,
        stop: StopInterpreter,
        on_change: Callable[[], None],
        on_busy: Callable[[InterpreterSession], None],
    ) -> None:
        self._heartbeat = heartbeat
        self._lock_timeout = lock_timeout
        self._stop = stop
        self._on_change = on_change
        self._on_busy = on_busy
        self._holders: WeakKeyDictionary[InterpreterSession, LockHolder] = WeakKeyDictionary()
        # By interpreter, the silence at which it was first found to run nothing.
        self._idle_from: WeakKeyDictionary[InterpreterSession, float] = WeakKeyDictionary()

    def look(self, session: InterpreterSession, silence: float) -> None:
        """Handle an interpreter that has been silent for too long, for ``silence`` seconds."""
        record = session.flight_record
        flights = record.running() if record is not None else []
        holder = self._holders.setdefault(session, LockHolder(session.pid))
        is_stopped = holder.is_stopped
        if not flights and not is_stopped and self._is_about_to_speak(session, silence):
            return
        if not flights or is_stopped:
            cause = Cause.KILLED if is_stopped else Cause.SILENT
            self._stop(session, f"no heartbeat for {silence:.1f} s", cause, None)
            return
        found = holder.find(flights)
        kernels = [flight for flight in flights if flight.subject.kind == KERNEL]
        if found is None and len(kernels or flights) == 1:
            [found] = kernels or flights
        self._note_busy(session, found, kernels or flights)
        # An import has its own timeout, which the task that waits for it enforces.
        is_import = found is not None and found.subject.kind != KERNEL
        if kernels and not is_import and silence > self._lock_timeout:
            what = str(found.subject) if found is not None else "one of its kernels"
            self._stop(
                session,
                f"{what} kept the interpreter lock for longer than {self._lock_timeout:g} s",
                Cause.LOCKED,
                found.subject if found is not None else None,
            )

    def note_heard(self, session: InterpreterSession) -> None:
        """Record that an interpreter, which may have been busy, has sent a heartbeat."""
        self._holders.pop(session, None)
        self._idle_from.pop(session, None)
        if session.busy:
            LOG.info(
                "interpreter %s is no longer busy",
                session.name,
                extra=fields(Event.INTERPRETER_READY, interpreter=session.name),
            )
            session.busy, session.busy_with = "", frozenset()
            self._on_change()

    def _is_about_to_speak(self, session: InterpreterSession, silence: float) -> bool:
        """Return whether a run ended during the silence, less than a heartbeat interval ago.

        The heartbeat that it delayed may be on its way. True only once in a silence: an interpreter
        whose event loop has stopped may still run kernels in other threads.
        """
        record = session.flight_record
        landed = record.ended() if record is not None else []
        if not landed or time.monotonic() - landed[0].ended > silence:
            return False
        return silence - self._idle_from.setdefault(session, silence) < self._heartbeat

    def _note_busy(
        self, session: InterpreterSession, found: Flight | None, flights: list[Flight]
    ) -> None:
        suspects = [found] if found is not None else flights
        with_libraries = frozenset(flight.subject.library for flight in suspects)
        if session.busy and session.busy_with == with_libraries:
            return
        keeps = f"{found.subject if found else 'one of its kernels'} keeps the interpreter lock"
        LOG.warning(
            "interpreter %s is busy: %s; other calls go to other interpreters",
            session.name,
            keeps,
            extra=fields(
                Event.INTERPRETER_BUSY,
                interpreter=session.name,
                operator=found.subject.operator if found is not None else "",
            ),
        )
        session.busy, session.busy_with = keeps, with_libraries
        session.busy_operators = frozenset(flight.subject.operator for flight in suspects)
        self._on_change()
        self._on_busy(session)
