"""The two kinds of threads of a race, and what they note."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from time import perf_counter

import numpy as np

from opdispatch.errors import OpdispatchError, OperatorNotFoundError
from opdispatch_client.listings import Library
from opdispatch_client.session import Session
from opdispatch_client.stress.history import ABSENT, Read, Stamp, Write
from opdispatch_client.stress.library_text import check_answer, library_text
from opdispatch_wire.errors import LibraryNotFoundError

_LONGEST_ARGUMENT = 64


@dataclass
class RaceLog:
    """What one thread saw; those of all threads, added up, are what the race saw."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    call_seconds: list[float] = field(default_factory=list)
    load_seconds: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    """Requests that failed though nothing was wrong with them, by the error's message."""
    wrong_answers: list[str] = field(default_factory=list)

    def add(self, other: RaceLog) -> None:
        """Takes over all that the other one has."""
        self.writes += other.writes
        self.reads += other.reads
        self.call_seconds += other.call_seconds
        self.load_seconds += other.load_seconds
        self.counts.update(other.counts)
        self.errors.update(other.errors)
        self.wrong_answers += other.wrong_answers

    def add_error(self, what: str, error: OpdispatchError) -> None:
        """Notes a request that should not have failed."""
        self.errors[f"{what}: {type(error).__name__}: {error}"] += 1


class Stamps:
    """The stamps of a race: each is given out once, for one text. Threads share it."""

    def __init__(self) -> None:
        self._next = count(1)  # next() on it is atomic, and so is writing to the dict
        self._of_digest: dict[str, int] = {}

    def new_text(self, namespace: str) -> tuple[int, str]:
        """A stamp that nobody has, and the library that answers with it."""
        stamp = next(self._next)
        text = library_text(namespace, stamp)
        self._of_digest[hashlib.sha256(text.encode()).hexdigest()] = stamp
        return stamp, text

    def find(self, library: Library | None) -> Stamp:
        """The stamp of a version that the daemon names; absent if it names none."""
        # A digest that is unknown here belongs to no text of ours: 0 is nobody's stamp.
        return ABSENT if library is None else self._of_digest.get(library.sha256, 0)


class Loader:
    """Loads, replaces and unloads libraries in random order."""

    def __init__(self, session: Session, random: Random, stamps: Stamps, folder: Path) -> None:
        self.log = RaceLog()
        self._session = session
        self._random = random
        self._stamps = stamps
        self._folder = folder
        self._latest: dict[str, tuple[int, str, int]] = {}  # stamp, text, version

    def act(self, name: str) -> None:
        """Does one thing with the library."""
        actions = (self._load_new, self._load_same, self._unload, self._unload_version)
        self._random.choices(actions, weights=(6, 1, 2, 2))[0](name)

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
            library = self._session.load(path)
        except OpdispatchError as error:
            self.log.add_error("load", error)
            self.log.writes.append(Write(name, stamp, started, None))
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
            self.log.add_error("unload", error)
            self.log.writes.append(Write(name, ABSENT, started, None))
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
            # What would have become active is unknown, so nothing can be said of it.
            self.log.add_error("unload of a version", error)
        else:
            # Where the version was not the active one, this writes what was there already.
            self.log.counts["unloads of a version"] += 1
            self.log.writes.append(Write(name, self._stamps.find(active), started, perf_counter()))


class Caller:
    """Calls libraries, and checks the answers' contents."""

    def __init__(self, session: Session, random: Random) -> None:
        self.log = RaceLog()
        self._session = session
        self._random = random

    def act(self, name: str) -> None:
        """Calls the library's operator once."""
        scale = self._random.randrange(-3, 4)
        argument = np.arange(self._random.randrange(_LONGEST_ARGUMENT))
        started = perf_counter()
        try:
            answer = self._session.call(f"{name}::shift", argument, scale=scale)
            stamp: Stamp = check_answer(argument, scale, answer)
        except OperatorNotFoundError:
            stamp = ABSENT
        except OpdispatchError as error:
            self.log.add_error("call", error)
            return
        except ValueError as error:
            self.log.wrong_answers.append(f"{name}: {error}")
            return
        finished = perf_counter()
        self.log.counts["calls of nothing" if stamp is ABSENT else "calls"] += 1
        self.log.call_seconds.append(finished - started)
        self.log.reads.append(Read(name, stamp, started, finished))
