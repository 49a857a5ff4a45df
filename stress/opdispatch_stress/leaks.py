"""Leak checks: resources that a daemon must have released when a race is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from opdispatch_client.blocking import Session, connect
from opdispatch_stress.private_daemon import PrivateDaemon

# Processes and sockets take a moment to close.
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.05
# Sockets of connections closed a moment ago, and those that gRPC keeps open for reuse.
_SPARE_FILES = 16


class Baseline:
    """The open resources of a daemon before a race, with which ``find_leaks`` compares."""

    def __init__(self, daemon: PrivateDaemon, interpreters: int) -> None:
        self._daemon = daemon
        self._interpreters = interpreters
        self._processes = len(daemon.processes())
        self._files = daemon.open_files()
        self._segments = daemon.shared_segments()

    def find_leaks(self) -> list[str]:
        """Return descriptions of surplus resources after a race, with all libraries unloaded."""
        # The daemon's own, one for each interpreter, and one for a daemon that takes over.
        daemon, expected = self._daemon, 2 + self._interpreters
        allowed = self._files + _SPARE_FILES
        leaks = []
        if not _settles(lambda: len(daemon.processes()) == self._processes):
            processes = daemon.processes()
            leaks.append(f"{len(processes)} processes are running, expected {self._processes}")
            leaks += [f"    {pid}: {command}" for pid, command in processes.items()]
        if not _settles(lambda: len(daemon.sockets()) <= expected):
            leaks.append(f"there are the sockets {daemon.sockets()}, expected {expected} of them")
        if not _settles(lambda: daemon.open_files() <= allowed):
            leaks.append(f"the daemon has {daemon.open_files()} open files, before {self._files}")
        if not _settles(lambda: _segments_of(daemon) <= self._segments):
            segments = daemon.shared_segments()
            leaks.append(f"{segments} shared segments are open, before {self._segments}")
        return leaks


def _segments_of(daemon: PrivateDaemon) -> int:
    """Return the number of shared segments, after the daemon has summed up ended interpreters.

    It keeps the segments of a few ended interpreters until their counts are requested.
    """
    with connect(daemon.address) as session, closing(session.watch_registry(activity=True)) as sums:
        next(sums)
    return daemon.shared_segments()


def find_remains(daemon: PrivateDaemon) -> list[str]:
    """Return descriptions of the processes and files that a stopped daemon has left behind."""
    remains = []
    if not _settles(lambda: not daemon.processes()):
        remains += [f"process {pid} is left: {cmd}" for pid, cmd in daemon.processes().items()]
    if not _settles(lambda: not daemon.leftovers()):
        remains.append(f"in the runtime folder is left: {daemon.leftovers()}")
    return remains


def find_counts(session: Session) -> list[str]:
    """Return descriptions of gauges that are not 0 although no request is in progress."""

    def counted() -> list[str]:
        return [
            *(
                f"{library.name} v{library.version} counts {library.calls_in_flight} calls"
                for library in session.libraries(all_versions=True)
                if library.calls_in_flight
            ),
            *(
                f"interpreter {interpreter.name} counts {interpreter.calls_in_flight} calls"
                for interpreter in session.interpreters()
                if interpreter.calls_in_flight
            ),
        ]

    return [] if _settles(lambda: not counted()) else counted()


def _settles(reached: Callable[[], bool]) -> bool:
    """Return whether ``reached()`` becomes true in time. Polled: there is no notification."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
