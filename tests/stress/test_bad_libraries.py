"""An outage of one library stays its own: bad libraries at random beside good ones.

Seconds here; ``OPDISPATCH_STRESS_SECONDS`` makes it last longer, ``make stress`` a minute.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon
from tests.stress.bad_libraries import WAYS, bad_library, good_library
from tests.waits import LONGEST_WAIT, join

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("OPDISPATCH_STRESS_SECONDS", "5"))
SEED = int(os.environ.get("OPDISPATCH_STRESS_SEED", random.SystemRandom().randrange(10**6)))
GOOD = {f"good{number}": number + 2 for number in range(5)}
BAD_CALLERS = 6
X = np.arange(4.0)

# A kernel that hangs would keep its caller, and the next of its library, for their whole time.
HARM_SECONDS = 5.0
LOST_PER_DEATH = 2
DEATHS_PER_BAD_CALL = 1.2
# Seconds without an answer of one library; asked for in long runs, which have the machine alone.
LONGEST_GAP = 3.0
LONG = "OPDISPATCH_STRESS_SECONDS" in os.environ
# Ways to be bad that take no interpreter.
HARMLESS = frozenset({"spin_briefly", "answer_at_length"})


@dataclass
class Storm:
    """Observations of the callers. ``lock`` guards every field but ``daemon``."""

    daemon: RunningDaemon
    ends_at: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    bad_calls: Counter[str] = field(default_factory=Counter)
    last_served: dict[str, float] = field(default_factory=dict)
    longest_gap: dict[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.ends_at

    def note_served(self, name: str) -> None:
        now = time.monotonic()
        with self.lock:
            self.served[name] += 1
            gap = now - self.last_served.get(name, now)
            self.longest_gap[name] = max(self.longest_gap.get(name, 0.0), gap)
            self.last_served[name] = now

    def call_good_library(self, name: str, seed: str) -> None:
        rng, factor = random.Random(seed), GOOD[name]
        with self.daemon.connect(timeout=LONGEST_WAIT) as session:
            operators = getattr(session.ops, name)
            while not self.is_over:
                try:
                    match rng.randrange(10):
                        case 0:
                            right = np.array_equal(operators.wait(X, 0.005), X * factor)
                        case 1 | 2:
                            right = operators.count(X) == [factor] * len(X)
                        case _:
                            right = np.array_equal(operators.scale(X), X * factor)
                except oc.OpdispatchError as error:
                    with self.lock:
                        self.lost.append(f"{name}: {type(error).__name__}: {error}")
                else:
                    if not right:
                        self.wrong.append(name)
                    self.note_served(name)
                threading.Event().wait(0.002)

    def call_bad_libraries(self, seed: str) -> None:
        rng = random.Random(seed)
        with self.daemon.connect(timeout=LONGEST_WAIT) as session:
            while not self.is_over:
                name = rng.choice(sorted(WAYS))
                how = rng.choice(WAYS[name])
                with self.lock:
                    self.bad_calls[how] += 1
                operators = getattr(session.with_options(timeout=HARM_SECONDS).ops, name)
                # Whatever becomes of these two calls is the bad library's own business.
                with contextlib.suppress(oc.OpdispatchError):
                    operators.harm(X, how)
                with contextlib.suppress(oc.OpdispatchError):
                    operators.fine(X)
                threading.Event().wait(rng.random())


@pytest.fixture
def storm_daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    # Libraries that keep the lock are worth ten seconds each otherwise, one after the other.
    daemon = RunningDaemon(tmp_path, "--lock-timeout", "3", workers=3)
    daemon.expects_errors = True
    try:
        daemon.wait_until_ready()
        with daemon.connect() as session:
            for name, factor in GOOD.items():
                (path := tmp_path / f"{name}.py").write_text(good_library(name, factor))
                session.load(path)
            for name in WAYS:
                (path := tmp_path / f"{name}.py").write_text(bad_library(name))
                session.load(path)
        yield daemon
    finally:
        daemon.clean_up()


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_bad_libraries_leave_good_ones_served(storm_daemon: RunningDaemon):
    print(f"OPDISPATCH_STRESS_SEED={SEED}")
    storm = Storm(storm_daemon, time.monotonic() + SECONDS)
    threads = [
        threading.Thread(target=storm.call_good_library, args=(name, f"{SEED}/{name}"))
        for name in GOOD
    ]
    threads += [
        threading.Thread(target=storm.call_bad_libraries, args=(f"{SEED}/{number}",))
        for number in range(BAD_CALLERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread, SECONDS + 2 * LONGEST_WAIT)
    with storm_daemon.connect() as session:
        deaths = sum(interpreter.restarts for interpreter in session.interpreters())
        for name, factor in GOOD.items():
            np.testing.assert_array_equal(getattr(session.ops, name).scale(X), X * factor)
        assert session.check_invariants() == []
    harmful = sum(count for how, count in storm.bad_calls.items() if how not in HARMLESS)
    report = f"{deaths} deaths, {harmful} bad calls, {len(storm.lost)} lost: {storm.lost[:20]}"
    print(f"{report}; {sum(storm.served.values())} served; longest gaps {storm.longest_gap}")
    assert storm.wrong == []
    assert len(storm.lost) <= LOST_PER_DEATH * deaths, report
    assert deaths <= DEATHS_PER_BAD_CALL * harmful, report
    if LONG:
        assert max(storm.longest_gap.values()) <= LONGEST_GAP, storm.longest_gap
