"""The race: threads that load, replace and unload libraries while others call them.

Each thread has a session of its own and notes what it saw. Nothing is judged here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter

from opdispatch_client.session import connect
from opdispatch_client.stress.racers import Caller, Loader, RaceLog, Stamps

_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """What is raced, and by how many."""

    address: str
    seconds: float
    loaders: int
    callers: int
    libraries: int
    seed: int
    folder: Path
    """Where the generated files go."""
    timeout: float | None = 30.0

    @property
    def names(self) -> list[str]:
        """The libraries' names, which are their namespaces, too."""
        return [f"stress_{self.seed}_{number}" for number in range(self.libraries)]


class Race:
    """One race; ``run`` returns what was seen."""

    def __init__(self, options: RaceOptions) -> None:
        self._options = options
        self._stop = threading.Event()
        self._stamps = Stamps()

    def run(self, on_tick: Callable[[float], None]) -> RaceLog:
        """Races for the given time; `on_tick` learns now and then how many seconds are over.

        Raises what a thread could not deal with, once all have stopped.
        """
        threads = self._options.loaders + self._options.callers
        with ThreadPoolExecutor(threads, thread_name_prefix="stress") as pool:
            futures = [
                *(pool.submit(self._run, self._load, n) for n in range(self._options.loaders)),
                *(pool.submit(self._run, self._call, n) for n in range(self._options.callers)),
            ]
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
                return  # a thread has given up
        on_tick(self._options.seconds)

    def _run(self, body: Callable[[int], RaceLog], number: int) -> RaceLog:
        try:
            return body(number)
        except BaseException:
            self._stop.set()
            raise

    def _load(self, number: int) -> RaceLog:
        options = self._options
        folder = options.folder / f"loader-{number}"
        folder.mkdir()
        random = Random(f"{options.seed} loader {number}")
        with connect(options.address, timeout=options.timeout) as session:
            loader = Loader(session, random, self._stamps, folder)
            while not self._stop.is_set():
                loader.act(random.choice(options.names))
        return loader.log

    def _call(self, number: int) -> RaceLog:
        options = self._options
        random = Random(f"{options.seed} caller {number}")
        with connect(options.address, timeout=options.timeout) as session:
            caller = Caller(session, random)
            while not self._stop.is_set():
                caller.act(random.choice(options.names))
        return caller.log
