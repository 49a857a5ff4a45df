"""Intentional disruptions of a race, and the failures that they excuse."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from random import Random
from time import perf_counter

from opdispatch.errors import OpdispatchError
from opdispatch_client.blocking import Session, connect
from opdispatch_stress.private_daemon import PrivateDaemon
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    RefusedError,
)

# Time limit for a library to be available again after its only interpreter, or the daemon, was
# killed, on a busy machine.
_RECOVERY_SECONDS = 5.0
_RESTART_SECONDS = 20.0


class Disruptions:
    """The kills of a race. Threads share it: ``excuses`` may be called while ``run`` kills.

    Every kill is recorded before it is done, so that no failure precedes its excuse.
    """

    def __init__(self, *, interpreters: bool = False, daemon: bool = False) -> None:
        self.recovery_seconds = _RECOVERY_SECONDS * interpreters
        """Seconds for which libraries may be unavailable; 0 if nothing is killed."""
        if daemon:
            self.recovery_seconds = _RESTART_SECONDS
        self.counts: Counter[str] = Counter()
        self._killed: set[str] = set()
        self._daemon_down = False

    def note_interpreter(self, name: str) -> None:
        """Record a kill of this interpreter: from now on, calls may fail with its name."""
        self._killed.add(name)
        self.counts["interpreters killed"] += 1

    def note_daemon(self) -> None:
        """Record a kill of the daemon: from now on, requests may find none."""
        self._daemon_down = True
        self.counts["daemons killed"] += 1

    def excuses(self, error: OpdispatchError) -> bool:
        """Return whether a kill can have caused a request to fail with ``error``."""
        match error:
            case InterpreterDiedError():  # a killed daemon's interpreters end by themselves
                return self._daemon_down or error.facts.get("interpreter", "") in self._killed
            case RefusedError():
                return bool(self._killed) or self._daemon_down
            case DaemonUnavailableError():
                return self._daemon_down
        return False

    def excuses_call(self, error: OpdispatchError, *, mutates: bool) -> bool:
        """Return whether a kill can have caused a call to fail with ``error``.

        The death of an interpreter excuses only calls that may have written to their arguments. The
        daemon must rerun all others, or hold them until the library is available, unless it was
        killed, too.
        """
        match error:
            case InterpreterDiedError():
                if error.facts.get("daemon") == "unavailable":
                    return self._daemon_down
                started = error.facts.get("started") != "no"
                return mutates and started and self.excuses(error)
            case RefusedError():
                return self._daemon_down
        return self.excuses(error)


class Killer:
    """Kills an interpreter every ``every`` and the daemon every ``daemon_every`` seconds.

    0 means never.
    """

    def __init__(
        self,
        daemon: PrivateDaemon,
        disruptions: Disruptions,
        random: Random,
        *,
        every: float,
        daemon_every: float = 0.0,
    ) -> None:
        self._daemon = daemon
        self._disruptions = disruptions
        self._random = random
        self._every = {
            kill: seconds
            for kill, seconds in (
                (self._kill_interpreter, every),
                (self._kill_daemon, daemon_every),
            )
            if seconds
        }

    def run(self, stop: threading.Event) -> None:
        """Kill until `stop` is set; kills are recorded in the disruptions."""
        due = {kill: perf_counter() + seconds for kill, seconds in self._every.items()}
        with connect(self._daemon.address) as session:
            while True:
                kill = min(due, key=lambda kill: due[kill])
                if stop.wait(max(due[kill] - perf_counter(), 0)):
                    return
                # The daemon may not answer yet, or have no interpreters to kill yet.
                with contextlib.suppress(DaemonUnavailableError):
                    kill(session)
                due[kill] = perf_counter() + self._every[kill]

    def _kill_daemon(self, session: Session) -> None:
        self._disruptions.note_daemon()
        self._daemon.restart()

    def _kill_interpreter(self, session: Session) -> None:
        """Kill one of the interpreters that were killed least often.

        If only one is left, it is not killed: on a slow machine, killing may outpace restarting.
        """
        running = session.interpreters()
        if len(running) > 1:
            fewest = min(interpreter.restarts for interpreter in running)
            victim = self._random.choice([i for i in running if i.restarts == fewest])
            self._disruptions.note_interpreter(victim.name)
            with contextlib.suppress(ProcessLookupError):  # it ended by itself just now
                os.kill(victim.pid, signal.SIGKILL)
