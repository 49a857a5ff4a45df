"""The daemon is killed at random moments while clients load and unload: nothing is lost.

Each client has names of its own and does one thing after another, so that it knows what a name
must be: as acknowledged last, or, for the one change that was under way when the daemon died,
either as before it or as after it.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("OPDISPATCH_STRESS_KILLS", "3"))
SEED = int(os.environ.get("OPDISPATCH_STRESS_SEED", "0")) or random.SystemRandom().randrange(2**32)
CLIENTS = 3
NAMES = 4
# How many changes are acknowledged, at most, before a kill.
LONGEST_ROUND = 40
# The aim on an idle machine is two seconds; on a busy one this still tells a start that hangs.
BACK_WITHIN = 60.0
X = np.zeros(2)

Versions = tuple[tuple[int, int], ...]
"""Versions of a name, oldest first, each with its value."""


@dataclass
class Name:
    """State of a library, as one client knows it."""

    name: str
    versions: Versions = ()
    last: int = 0
    # What it may be instead, if the change under way was made after all.
    pending: list[tuple[Versions, int]] = field(default_factory=list)

    def settle(self, found: Versions) -> None:
        """Take what is there after a restart; it must be explained."""
        possible = [(self.versions, self.last), *self.pending]
        assert found in [versions for versions, _ in possible], (self.name, found, possible)
        self.versions, self.last = next(each for each in possible if each[0] == found)
        self.pending = []


class Client:
    """Changes its own libraries, one at a time, until the daemon is gone."""

    def __init__(self, number: int, folder: Path, rng: random.Random) -> None:
        self.names = [Name(f"c{number}n{n}") for n in range(NAMES)]
        self._folder = folder
        self._rng = rng
        self._values = iter(range(number * 1_000_000, (number + 1) * 1_000_000))

    def work(
        self,
        daemon: RunningDaemon,
        acknowledged: threading.Semaphore,
        errors: list[BaseException],
    ) -> None:
        try:
            with daemon.connect(wait=0) as session:
                while True:
                    self._change(session, self._rng.choice(self.names))
                    acknowledged.release()
        except (oc.DaemonUnavailableError, oc.RefusedError, oc.InterpreterDiedError):
            return  # the daemon was killed; what was under way stays pending
        except BaseException as error:
            errors.append(error)

    def _change(self, session: oc.Session, name: Name) -> None:
        choice = self._rng.random()
        if not name.versions or choice < 0.6:
            value = next(self._values)
            path = self._folder / f"{name.name}.py"
            path.write_text(constant(value, namespace=name.name))
            number = name.last + 1
            after = (*name.versions[-1:], (number, value))
            name.pending = [(after, number)]
            assert session.load(path).version == number
        elif choice < 0.8:
            name.pending = [((), name.last)]
            session.unload(name.name)
        else:
            name.pending = [(name.versions[:-1], name.last)]
            session.unload(name.name, version=name.versions[-1][0])
        name.versions, name.last = name.pending[0]
        name.pending = []


def check(session: oc.Session, clients: list[Client]) -> None:
    """Every name is what its client knows, and answers so."""
    listed: dict[str, list[oc.Library]] = {}
    for library in session.libraries(all_versions=True):
        listed.setdefault(library.name, []).append(library)
    names = {name.name: name for client in clients for name in client.names}
    assert listed.keys() <= names.keys()
    for name in names.values():
        values = dict((*name.versions, *(v for versions, _ in name.pending for v in versions)))
        found = listed.get(name.name, [])
        name.settle(tuple((library.version, values.get(library.version, -1)) for library in found))
        assert [library.state for library in found] == ["kept", "active"][2 - len(found) :]
        if found:
            assert session.call(f"{name.name}::get", X) == name.versions[-1][1]
        else:
            with pytest.raises(oc.OperatorNotFoundError):
                session.call(f"{name.name}::get", X)
    assert session.check_invariants() == []


@contextmanager
def starting(folder: Path) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon(folder)
    daemon.expects_errors = True  # interpreters notice the kill, and some say so
    try:
        yield daemon
    finally:
        daemon.clean_up()


@contextmanager
def started(folder: Path) -> Iterator[RunningDaemon]:
    with starting(folder) as daemon:
        daemon.wait_until_ready()
        yield daemon


def test_killed_daemon_loses_no_acknowledged_change(tmp_path: Path):
    rng = random.Random(SEED)
    print(f"OPDISPATCH_STRESS_SEED={SEED}")
    clients = [Client(n, tmp_path, random.Random(rng.random())) for n in range(CLIENTS)]
    slowest = 0.0
    changes = 0
    for kill in range(KILLS):
        if kill % 3 == 2:  # before it is ready, while it brings the libraries back
            with starting(tmp_path) as daemon:
                threading.Event().wait(rng.uniform(0.0, 1.5))
                daemon.signal(signal.SIGKILL)
        began = time.monotonic()
        with started(tmp_path) as daemon, daemon.connect() as session:
            check(session, clients)
            slowest = max(slowest, time.monotonic() - began)
            errors: list[BaseException] = []
            acknowledged = threading.Semaphore(0)
            threads = [
                threading.Thread(target=client.work, args=(daemon, acknowledged, errors))
                for client in clients
            ]
            for thread in threads:
                thread.start()
            # The seed chooses the moment of the kill: after so many changes, amid others.
            round_length = rng.randint(1, LONGEST_ROUND)
            for _ in range(round_length):
                assert acknowledged.acquire(timeout=BACK_WITHIN), (errors, "no change came through")
            changes += round_length
            threading.Event().wait(rng.uniform(0.0, 0.02))
            daemon.signal(signal.SIGKILL)
            daemon.wait()
            for thread in threads:
                thread.join(LONGEST_WAIT)
            assert not errors, errors
    with started(tmp_path) as daemon, daemon.connect() as session:
        check(session, clients)
        assert daemon.stop() == 0
    print(f"{KILLS} kills, {changes} changes before them, slowest return {slowest:.2f} s")
    assert slowest < BACK_WITHIN
