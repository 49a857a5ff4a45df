"""The race: threads that load, replace and unload libraries while others call and await them.

Each thread has its own session and records its observations, which ``report`` evaluates.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

from opdispatch_client.blocking import Session, connect
from opdispatch_stress.disruptions import Disruptions, Killer
from opdispatch_stress.race_log import RaceLog
from opdispatch_stress.racers import Caller, Loader, Stamps, Waiter

_TICK_SECONDS = 0.1
# Pause between waits: an existing operator is reported at once, so waiters without a pause would
# dominate the load.
_WAITERS_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """The operations of a race, and the number of threads."""

    address: str
    tcp_address: str
    """The daemon's TCP address, which every second caller uses; empty to use none."""
    seconds: float
    loaders: int
    callers: int
    waiters: int
    libraries: int
    operators: int
    seed: int
    folder: Path
    """The folder of the generated files."""
    timeout: float | None = 30.0

    @property
    def names(self) -> list[str]:
        """The names of the libraries, which are also their namespaces."""
        return [f"stress_{self.seed}_{number}" for number in range(self.libraries)]


class Race:
    """One race; ``run`` returns its observations. ``killer``, if given, runs in a thread, too."""

    def __init__(
        self, options: RaceOptions, disruptions: Disruptions, killer: Killer | None = None
    ) -> None:
        self._options = options
        self._disruptions = disruptions
        self._killer = killer
        self._stop = threading.Event()
        self._stamps = Stamps(options.operators)
        self._end = 0.0

    def run(self, on_tick: Callable[[float], None]) -> RaceLog:
        """Race for the given time; call `on_tick` periodically with the elapsed seconds.

        Raises a thread's unexpected error, once all have stopped.
        """
        options = self._options
        self._end = perf_counter() + options.seconds
        bodies: list[Callable[[], RaceLog]] = [
            *(functools.partial(self._load, number) for number in range(options.loaders)),
            *(functools.partial(self._call, number) for number in range(options.callers)),
            *(functools.partial(self._await, number) for number in range(options.waiters)),
            *([self._kill] if self._killer else []),
        ]
        with ThreadPoolExecutor(len(bodies), thread_name_prefix="stress") as pool:
            futures = [pool.submit(self._run, body) for body in bodies]
            try:
                self._wait(on_tick)
            finally:
                self._stop.set()
        log = RaceLog()
        for future in futures:
            log.add(future.result())
        return log

    def _wait(self, on_tick: Callable[[float], None]) -> None:
        started = perf_counter()
        while (passed := perf_counter() - started) < self._options.seconds:
            on_tick(passed)
            if self._stop.wait(min(_TICK_SECONDS, self._options.seconds - passed)):
                return  # a thread has failed
        on_tick(self._options.seconds)

    def _run(self, body: Callable[[], RaceLog]) -> RaceLog:
        try:
            return body()
        except BaseException:
            self._stop.set()
            raise

    def _load(self, number: int) -> RaceLog:
        options = self._options
        folder = options.folder / f"loader-{number}"
        folder.mkdir()
        random = Random(f"{options.seed} loader {number}")
        with self._connect() as session:
            interpreters = len(session.interpreters())
            loader = Loader(session, random, self._stamps, folder, self._disruptions, interpreters)
            while not self._stop.is_set():
                loader.act(random.choice(options.names))
        return loader.log

    def _call(self, number: int) -> RaceLog:
        options = self._options
        random = Random(f"{options.seed} caller {number}")
        with self._connect_caller(number) as session:
            caller = Caller(session, random, options.operators, self._disruptions)
            while not self._stop.is_set():
                caller.act(random.choice(options.names))
        return caller.log

    def _await(self, number: int) -> RaceLog:
        options = self._options
        random = Random(f"{options.seed} waiter {number}")
        with self._connect() as session:
            waiter = Waiter(session, random, self._disruptions)
            while not self._stop.is_set():
                left = max(self._end - perf_counter(), _TICK_SECONDS)
                waiter.act(random.choice(options.names), left)
                self._stop.wait(_WAITERS_PAUSE_SECONDS)
        return waiter.log

    def _kill(self) -> RaceLog:
        assert self._killer is not None, "only started with one"
        self._killer.run(self._stop)
        return RaceLog(counts=self._disruptions.counts)

    def _connect(self) -> Session:
        return connect(self._options.address, timeout=self._options.timeout)

    def _connect_caller(self, number: int) -> Session:
        options = self._options
        if number % 2 and options.tcp_address:
            return connect(options.tcp_address, lane="stream", timeout=options.timeout)
        return self._connect()
