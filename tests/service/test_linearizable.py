"""Observations of one registry by many clients could have happened one after the other.

With ``OPDISPATCH_STRESS_SECONDS``, as in ``make stress``, they do more.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import opdispatch_client as oc
from opdispatch_stress.linearizability import Operation, UnexplainedError, check_linearizable
from tests.library_model import LibraryState, library_step, library_step_with_deaths
from tests.service.conftest import StartDaemon
from tests.service.recording_client import RecordingClient
from tests.service.running_daemon import Background, RunningDaemon, wait_for

SEED = 20_261
NAMES = ("red", "green", "blue")
LONG = "OPDISPATCH_STRESS_SECONDS" in os.environ
CHANGERS, CHANGES = 4, 120 if LONG else 35
ACTIONS = ("new", "same", "all", "one", "back", "scale", "list")
WEIGHTS = (6, 2, 1, 3, 2, 1, 2)
CALLERS, CALLS = 4, 700 if LONG else 200
INTERPRETERS, KILLS = 3, 4
# A request that had to do with an interpreter that died may have taken effect or not.
UNCLEAR = (oc.InterpreterDiedError, oc.RefusedError)


class Traffic:
    """Threads with a session each: some change the registry, some call, all at once."""

    def __init__(
        self,
        daemon: RunningDaemon,
        folder: Path,
        unclear: tuple[type[oc.OpdispatchError], ...] = (),
    ) -> None:
        self._daemon = daemon
        self._folder = folder
        self._unclear = unclear
        self._stamps = itertools.count(1)
        self.over = threading.Event()

    def run(self) -> list[Operation]:
        with ThreadPoolExecutor(CHANGERS + CALLERS) as pool:
            parts = [
                *(pool.submit(self._change, number) for number in range(CHANGERS)),
                *(pool.submit(self._call, number) for number in range(CALLERS)),
            ]
            for part in parts:
                part.exception()
            self.over.set()
        return [operation for part in parts for operation in part.result()]

    def _change(self, number: int) -> list[Operation]:
        random = Random(f"{SEED} changer {number}")
        latest = dict.fromkeys(NAMES, (0, 0))
        with self._daemon.connect() as session:
            client = RecordingClient(session, self._folder / f"changer-{number}", self._unclear)
            for _ in range(CHANGES):
                name = random.choice(NAMES)
                stamp, version = latest[name]
                match random.choices(ACTIONS, WEIGHTS)[0]:
                    case "new":
                        stamp = next(self._stamps)
                        loaded = client.load(name, stamp)
                        if isinstance(loaded, tuple):
                            latest[name] = stamp, loaded[0]
                    case "same" if stamp:
                        client.load(name, stamp)
                    case "one" if version:
                        client.unload(name, version)
                    case "back":
                        client.rollback(name)
                    case "scale":
                        client.scale(name, random.randint(1, 3))
                    case "list":
                        client.list(name)
                    case _:
                        client.unload(name)
        return client.history

    def _call(self, number: int) -> list[Operation]:
        random = Random(f"{SEED} caller {number}")
        with self._daemon.connect() as session:
            client = RecordingClient(session, self._folder / f"caller-{number}", self._unclear)
            for _ in range(CALLS):
                client.call(random.choice(NAMES))
        return client.history


def test_real_traffic_is_linearizable(daemon: RunningDaemon, tmp_path: Path):
    history = Traffic(daemon, tmp_path).run()
    assert len(history) == CHANGERS * CHANGES + CALLERS * CALLS
    kinds = {operation.kind for operation in history}
    assert kinds == {"load", "unload", "rollback", "scale", "call", "list"}
    check_linearizable(history, LibraryState(), library_step)
    # And the checker would have seen it, had one call been answered by another version.
    spoiled = next(
        place
        for place, operation in enumerate(history)
        if operation.kind == "call" and isinstance(operation.response, int)
    )
    call = history[spoiled]
    history[spoiled] = Operation(
        call.name, "call", None, call.response + 10_000, call.invoked, call.returned
    )
    with pytest.raises(UnexplainedError, match=f"operations on {call.name}"):
        check_linearizable(history, LibraryState(), library_step)
    with daemon.connect() as session:
        assert session.check_invariants() == []


def kill_interpreters(daemon: RunningDaemon, over: threading.Event) -> int:
    """Kill one after the other, but never the last one that is there; return how many."""
    random, kills = Random(SEED), 0
    with daemon.connect() as session:
        while not over.is_set() and kills < KILLS:
            ready = {i.name: i for i in session.interpreters() if i.pid}
            if len(ready) < 2:
                over.wait(0.02)
                continue
            victim = ready[random.choice(sorted(ready))]
            os.kill(victim.pid, signal.SIGKILL)
            kills += 1
            gone = lambda pid=victim.pid: all(i.pid != pid for i in session.interpreters())  # noqa: E731
            assert wait_for(gone)
    return kills


def test_traffic_beside_deaths_is_linearizable(start_daemon: StartDaemon, tmp_path: Path):
    daemon = start_daemon(workers=INTERPRETERS)
    daemon.expects_errors = True
    traffic = Traffic(daemon, tmp_path, UNCLEAR)
    with Background(kill_interpreters, daemon, traffic.over) as killing:
        history = traffic.run()
        assert killing.result() > 0
    check_linearizable(history, LibraryState(), library_step_with_deaths)
    with daemon.connect() as session:
        assert wait_for(lambda: all(lib.active for lib in session.libraries()))
        assert session.check_invariants() == []
