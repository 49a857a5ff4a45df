"""The threads of a race: they load, call and wait, each with its own session, and record it."""

from __future__ import annotations

import hashlib
import time
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter

import numpy as np

from opdispatch.errors import OpdispatchError, OperatorNotFoundError, WaitTimeoutError
from opdispatch_client.blocking import Session
from opdispatch_client.listings import Library
from opdispatch_stress.disruptions import Disruptions
from opdispatch_stress.history import ABSENT, PRESENT, Read, Stamp, Write
from opdispatch_stress.library_text import MUTATING, check_answer, library_text
from opdispatch_stress.race_log import RaceLog
from opdispatch_wire.errors import (
    DaemonUnavailableError,
    InterpreterDiedError,
    LibraryNotFoundError,
    RefusedError,
)

_LONGEST_ARGUMENT = 64
_RETRY_PAUSE_SECONDS = 0.02
# Seconds after which a waiter without an answer, although the operator exists, counts as forgotten.
_GRACE_SECONDS = 2.0


class Stamps:
    """The stamps of a race; each identifies one library text. Thread-safe."""

    def __init__(self, operators: int = 1) -> None:
        self._operators = operators
        self._next = count(1)  # next() on it is atomic, and so is writing to the dict
        self._of_digest: dict[str, tuple[str, int]] = {}

    def new_text(self, namespace: str) -> tuple[int, str]:
        """Return a new stamp, and the text of a library whose results identify it."""
        stamp = next(self._next)
        text = library_text(namespace, stamp, self._operators)
        self._of_digest[hashlib.sha256(text.encode()).hexdigest()] = namespace, stamp
        return stamp, text

    def find(self, library: Library | None) -> Stamp:
        """Return the stamp of a version reported by the daemon; ABSENT if it reports none."""
        if library is None:
            return ABSENT
        # An unknown digest belongs to no generated text: no library has 0 as its stamp.
        return self._of_digest.get(library.sha256, ("", 0))[1]

    def all_of(self, namespace: str) -> list[int]:
        """Return all stamps of one library so far."""
        return [stamp for name, stamp in list(self._of_digest.values()) if name == namespace]


class Loader:
    """Loads, replaces and unloads libraries in random order."""

    def __init__(
        self,
        session: Session,
        random: Random,
        stamps: Stamps,
        folder: Path,
        disruptions: Disruptions,
        interpreters: int,
    ) -> None:
        self.log = RaceLog()
        self._session = session
        self._random = random
        self._stamps = stamps
        self._folder = folder
        self._interpreters = interpreters
        self._disruptions = disruptions
        self._latest: dict[str, tuple[int, str, int]] = {}  # stamp, text, version

    def act(self, name: str) -> None:
        """Make one random change to the library."""
        actions = (
            self._load_new,
            self._load_same,
            self._unload,
            self._unload_version,
            self._roll_back,
            self._scale,
        )
        self._random.choices(actions, weights=(6, 1, 2, 2, 2, 1))[0](name)

    def _load_new(self, name: str) -> None:
        self._load(name, *self._stamps.new_text(name))

    def _load_same(self, name: str) -> None:
        if name in self._latest:
            stamp, text, _ = self._latest[name]
            self._load(name, stamp, text)

    def _load(self, name: str, stamp: int, text: str) -> None:
        path = self._folder / f"{name}.py"
        path.write_text(text)
        started = perf_counter()
        try:
            library = self._session.load(path, interpreters=self._choose_replicas())
        except OpdispatchError as error:
            self._failed("load", error, name, started, [stamp])
            return
        finished = perf_counter()
        self.log.load_seconds.append(finished - started)
        self._latest[name] = (stamp, text, library.version)
        if library.already_loaded:
            self.log.counts["loads without change"] += 1
            self.log.reads.append(Read(name, stamp, started, finished))
        else:
            self.log.counts["loads"] += 1
            self.log.writes.append(Write(name, stamp, started, finished))

    def _unload(self, name: str) -> None:
        started = perf_counter()
        try:
            active = self._session.unload(name)
        except LibraryNotFoundError:
            self.log.counts["unloads of nothing"] += 1
            self.log.reads.append(Read(name, ABSENT, started, perf_counter()))
        except OpdispatchError as error:
            self._failed("unload", error, name, started, [ABSENT])
        else:
            self.log.counts["unloads"] += 1
            self.log.writes.append(Write(name, self._stamps.find(active), started, perf_counter()))

    def _unload_version(self, name: str) -> None:
        if name not in self._latest:
            return
        version = self._latest[name][2]
        started = perf_counter()
        try:
            active = self._session.unload(name, version=version)
        except LibraryNotFoundError:
            self.log.counts["unloads of nothing"] += 1
        except OpdispatchError as error:
            self._failed("unload of a version", error, name, started, self._any_version(name))
        else:
            # If the version was not the active one, this writes the existing value.
            self.log.counts["unloads of a version"] += 1
            self.log.writes.append(Write(name, self._stamps.find(active), started, perf_counter()))

    def _roll_back(self, name: str) -> None:
        started = perf_counter()
        try:
            active = self._session.rollback(name).active
        except LibraryNotFoundError:
            self.log.counts["rollbacks to nothing"] += 1
        except OpdispatchError as error:
            self._failed("rollback", error, name, started, self._any_version(name))
        else:
            self.log.counts["rollbacks"] += 1
            self.log.writes.append(Write(name, self._stamps.find(active), started, perf_counter()))

    def _scale(self, name: str) -> None:
        started = perf_counter()
        try:
            library = self._session.scale(name, self._choose_replicas() or 1)
            stamp = self._stamps.find(library)
        except LibraryNotFoundError:
            stamp = ABSENT
        except OpdispatchError as error:
            self._failed("scale", error, name, started, [])
            return
        self.log.counts["scales of nothing" if stamp is ABSENT else "scales"] += 1
        self.log.reads.append(Read(name, stamp, started, perf_counter()))

    def _choose_replicas(self) -> int | None:
        """Return a number of interpreters for a library; usually None, to keep the current one."""
        return self._random.choice((None, None, self._random.randint(1, self._interpreters)))

    def _failed(
        self, what: str, error: OpdispatchError, name: str, started: float, values: list[Stamp]
    ) -> None:
        """Record a failed change, and the versions that may be active if it took effect."""
        finished = perf_counter()
        excused = self._disruptions.excuses(error)
        self.log.add_error(what, error, excused=excused)
        if error.facts.get("started") == "no":
            time.sleep(_RETRY_PAUSE_SECONDS)  # no interpreters yet: wait for them
            return
        ended = finished if excused else None
        self.log.writes += [Write(name, value, started, ended, certain=False) for value in values]

    def _any_version(self, name: str) -> list[Stamp]:
        """Return the stamps that an earlier, restored version may have, or none."""
        return [ABSENT, *self._stamps.all_of(name)]


class Caller:
    """Calls libraries, and checks the results."""

    def __init__(
        self, session: Session, random: Random, operators: int, disruptions: Disruptions
    ) -> None:
        self.log = RaceLog()
        self._session = session
        self._random = random
        self._operators = operators
        self._disruptions = disruptions

    def act(self, name: str) -> None:
        """Call one of the library's operators, and repeat the call if it never ran."""
        number = self._random.randrange(self._operators + 1)
        operator = MUTATING if number == self._operators else f"shift{number}"
        scale = self._random.randrange(-3, 4)
        argument = np.arange(self._random.randrange(_LONGEST_ARGUMENT))
        give_up = perf_counter() + self._disruptions.recovery_seconds
        while self._try(name, operator, scale, argument, last=perf_counter() > give_up):
            self.log.counts["retries"] += 1
            time.sleep(_RETRY_PAUSE_SECONDS)

    def _try(
        self,
        name: str,
        operator: str,
        scale: int,
        argument: np.ndarray[tuple[int], np.dtype[np.int64]],
        *,
        last: bool,
    ) -> bool:
        """Call once; return whether to repeat the call, since it never ran."""
        original = argument.copy()
        started = perf_counter()
        try:
            answer = self._session.call(f"{name}::{operator}", argument, scale=scale)
            stamp: Stamp = check_answer(original, scale, answer)
        except OperatorNotFoundError:
            stamp = ABSENT
        except (RefusedError, DaemonUnavailableError, InterpreterDiedError) as error:
            # Only after a kill of the daemon does its caller have to repeat a call, if that never
            # ran, or changes nothing.
            mutates = operator == MUTATING
            excused = self._disruptions.excuses_call(error, mutates=mutates)
            died = isinstance(error, InterpreterDiedError)
            never_ran = isinstance(error, RefusedError) or error.facts.get("started") == "no"
            again = not died and (never_ran or not mutates)
            if excused and again and not last:
                return True
            self.log.add_error("call", error, excused=excused and not again)
            return False
        except OpdispatchError as error:
            self.log.add_error("call", error)
            return False
        except ValueError as error:
            self.log.wrong_answers.append(f"{name}: {error}")
            return False
        finished = perf_counter()
        if operator == MUTATING and stamp is not ABSENT and not (argument == answer[0]).all():
            self.log.wrong_answers.append(f"{name}: {operator} left {argument!r} in its argument")
        self.log.counts["calls of nothing" if stamp is ABSENT else "calls"] += 1
        self.log.call_seconds.append(finished - started)
        self.log.reads.append(Read(name, stamp, started, finished))
        return False


class Waiter:
    """Waits for operators that may exist, may be defined later, or may not."""

    def __init__(self, session: Session, random: Random, disruptions: Disruptions) -> None:
        self.log = RaceLog()
        self._session = session
        self._random = random
        self._disruptions = disruptions

    def act(self, name: str, longest: float) -> None:
        """Wait once, for at most `longest` seconds."""
        away = self._disruptions.recovery_seconds
        grace = away or _GRACE_SECONDS
        timeout = min(self._random.choice((0.1, 0.5, grace + 1)), longest)
        by_key = self._random.random() < 0.5
        started = perf_counter()
        try:
            if by_key:
                self._session.wait_for_impl(f"{name}::shift0", "CPU", timeout)
            else:
                self._session.wait_for_def(f"{name}::shift0", timeout)
        except WaitTimeoutError:
            finished = perf_counter()
            self.log.counts["waits in vain"] += 1
            # Had it existed all that time, some reply should have said so. An operator whose
            # interpreter was killed is unavailable for a short while.
            if timeout > grace or not away:
                absent_since = max(started, finished - grace)
                self.log.reads.append(Read(name, ABSENT, absent_since, finished))
        except OpdispatchError as error:
            excused = self._disruptions.excuses(error)
            self.log.add_error("wait", error, excused=excused)
        else:
            self.log.counts["waits"] += 1
            self.log.reads.append(Read(name, PRESENT, started, perf_counter()))
