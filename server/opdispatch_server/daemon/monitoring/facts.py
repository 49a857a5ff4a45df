"""The facts of a daemon that metrics and the page show."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from opdispatch_server.daemon.board.health import HealthBoard
from opdispatch_server.daemon.interpreters.totals import InterpreterTotals
from opdispatch_server.daemon.libraries.change_log import changes_so_far
from opdispatch_server.daemon.servicers.operator_log import OperatorLog
from opdispatch_server.daemon.servicers.registration_waiters import RegistrationWaiters
from opdispatch_server.daemon.servicers.registry_feed import RegistryFeed
from opdispatch_server.daemon.servicers.registry_view import RegistryView
from opdispatch_server.metrics.call_table import CallTable
from opdispatch_wire.errors import DaemonUnavailableError
from opdispatch_wire.v1 import interpreter_pb2
from opdispatch_wire.v1 import registry_pb2 as pb

STEP_TIMEOUT = 5.0
"""Seconds that the daemon's event loop may take to answer."""

_SHARED = re.compile(r"^RssShmem:\s+(\d+) kB$", re.MULTILINE)
_RESIDENT = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)
_TICKS = 100  # USER_HZ, the unit that Linux reports to programs whatever the kernel uses

T = TypeVar("T")


class ProcessUse(NamedTuple):
    """The resources of one process."""

    cpu_seconds: float
    resident_bytes: int
    shared_bytes: int
    """Memory shared with other processes: mostly tensors of calls."""


class Facts(NamedTuple):
    """One reading of a daemon's state."""

    interpreters: Sequence[pb.Interpreter]
    libraries: Sequence[pb.Library]
    operators: int
    epoch: int
    waiters: int
    is_ready: bool
    deaths: Mapping[str, int]
    changes: Mapping[str, int]
    calls: CallTable
    refusals: Mapping[str, int]
    """Calls that ended with an error raised by the daemon, by error class."""
    clients: Mapping[str, int]
    """The number of calls that each client has sent."""
    library_metrics: Mapping[str, Sequence[interpreter_pb2.LibraryMetric]]
    """Metrics that libraries define, by interpreter."""
    processes: Mapping[str, ProcessUse]
    """By interpreter, for those on this machine."""


class DaemonReader:
    """Reads a daemon from other threads.

    ``loop`` is the event loop that owns the daemon's parts.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        view: RegistryView,
        feed: RegistryFeed,
        waiters: RegistrationWaiters,
        health: HealthBoard,
        totals: InterpreterTotals,
        refusals: Callable[[], Mapping[str, int]],
    ) -> None:
        self.loop = loop
        self.view = view
        self.feed = feed
        self._waiters = waiters
        self._health = health
        self._totals = totals
        self._refusals = refusals

    @property
    def epoch(self) -> int:
        """The epoch of the daemon's registry."""
        return self.view.epoch

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question, which one step of the event loop computes.

        Raises DaemonUnavailableError if it takes too long, or the loop has ended.
        """

        async def step() -> T:
            return question()

        return self.wait_for(step())

    def up_to_date(self) -> OperatorLog:
        """Return the log of operators, as of this moment or later.

        Raises DaemonUnavailableError, and RefusedError as the feed does.
        """
        self.wait_for(self.feed.fresh())
        return self.feed.log

    def wait_for(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Return the result of a coroutine that the event loop runs.

        ``timeout`` is in seconds, by default ``STEP_TIMEOUT``. Raises DaemonUnavailableError if it
        takes longer, or the loop has ended.
        """
        timeout = STEP_TIMEOUT if timeout is None else timeout
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError as error:
            coroutine.close()
            raise DaemonUnavailableError("the daemon has stopped") from error
        try:
            return future.result(timeout)
        except (TimeoutError, FutureCancelledError) as error:
            if future.done() and not future.cancelled():
                raise  # the coroutine's own error
            future.cancel()
            raise DaemonUnavailableError(
                f"the daemon's event loop has not answered for {timeout:g} s"
            ) from error

    def calls(self) -> CallTable:
        """Return the counts of all calls, whatever the state of the daemon."""
        return self._totals.read()

    def is_ready(self) -> bool:
        """Return whether the daemon serves calls. Raises DaemonUnavailableError."""
        return self.ask(lambda: self._health.is_serving)

    def read(self) -> Facts:
        """Return all facts. Raises DaemonUnavailableError."""
        interpreters, is_ready, waiters, refusals = self.ask(self._step)
        near = self._totals.near()
        deaths, _ = self._totals.deaths()
        found = {each.name: read_process(each.pid) for each in interpreters if each.name in near}
        return Facts(
            interpreters=interpreters,
            libraries=self.view.list_libraries(all_versions=False).libraries,
            operators=self.view.operators,
            epoch=self.epoch,
            waiters=waiters,
            is_ready=is_ready,
            deaths=deaths,
            changes=changes_so_far(),
            calls=self._totals.read(),
            refusals=refusals,
            clients=self._totals.clients(),
            library_metrics=self._totals.library_metrics(),
            processes={name: use for name, use in found.items() if use is not None},
        )

    def _step(self) -> tuple[Sequence[pb.Interpreter], bool, int, Mapping[str, int]]:
        interpreters = self.view.list_interpreters().interpreters
        return interpreters, self._health.is_serving, self._waiters.count, dict(self._refusals())


def read_process(pid: int) -> ProcessUse | None:
    """Return the resources of a process of this machine; None if it is gone."""
    with suppress(OSError, ValueError, IndexError):
        folder = Path(f"/proc/{pid}")
        # The program's name, in parentheses, may contain spaces.
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        status = (folder / "status").read_text()
        resident, shared = _RESIDENT.search(status), _SHARED.search(status)
        return ProcessUse(
            (int(fields[11]) + int(fields[12])) / _TICKS,
            int(resident[1]) * 1024 if resident else 0,
            int(shared[1]) * 1024 if shared else 0,
        )
    return None
