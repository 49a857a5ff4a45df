"""What a race breaks on purpose, and which failures that excuses."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections import Counter
from random import Random

from opdispatch.errors import OpdispatchError
from opdispatch_client.listings import Interpreter
from opdispatch_client.session import connect
from opdispatch_client.stress.private_daemon import PrivateDaemon
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    RefusedError,
)

# A library that has lost its only interpreter must be back by then, on a busy machine, too.
RECOVERY_SECONDS = 5.0


class Disruptions:
    """The kills of a race. Threads share it: ``excuses`` may be asked while ``run`` kills.

    Every kill is noted before it is done, so that no failure comes before its excuse.
    """

    def __init__(self, *, expected: bool = False) -> None:
        self.expected = expected
        """Whether anything will be killed."""
        self.counts: Counter[str] = Counter()
        self._killed: set[str] = set()
        self._daemon_down = False

    def note_interpreter(self, name: str) -> None:
        """From now on calls may fail that name this interpreter."""
        self._killed.add(name)
        self.counts["interpreters killed"] += 1

    def note_daemon(self) -> None:
        """From now on requests may find no daemon."""
        self._daemon_down = True
        self.counts["daemons killed"] += 1

    def excuses(self, error: OpdispatchError) -> bool:
        """Whether a request had to fail like that, at least once, since something was killed."""
        match error:
            case InterpreterDiedError():
                return error.facts.get("interpreter", "") in self._killed
            case RefusedError():
                return bool(self._killed)
            case DaemonUnavailableError():
                return self._daemon_down
        return False


class Killer:
    """Kills an interpreter every so many seconds."""

    def __init__(
        self, daemon: PrivateDaemon, disruptions: Disruptions, random: Random, *, every: float
    ) -> None:
        self._daemon = daemon
        self._disruptions = disruptions
        self._random = random
        self._every = every

    def run(self, stop: threading.Event) -> None:
        """Kills until `stop`; what it did is in the disruptions."""
        with connect(self._daemon.address) as session:
            while not stop.wait(self._every):
                self._kill_one(session.interpreters())

    def _kill_one(self, running: list[Interpreter]) -> None:
        """Of those that were killed least often, any: none dies again and again.

        The last one is spared: on a slow machine, others may take longer to come back than it
        takes to kill all.
        """
        if len(running) < 2:
            return
        fewest = min(interpreter.restarts for interpreter in running)
        victim = self._random.choice([i for i in running if i.restarts == fewest])
        self._disruptions.note_interpreter(victim.name)
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, just now
            os.kill(victim.pid, signal.SIGKILL)
