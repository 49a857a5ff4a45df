"""What a supervised interpreter prints: its last lines are kept, and a flood is held back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger("opdispatch.supervisor")

LINES_KEPT = 100
"""A crash is said first: since Python 3.14, the stack of C functions takes some 60 lines."""
LINE_LIMIT = 4096
# So many lines may come at once; more are logged at this rate, and the rest is counted.
LINES_AT_ONCE = 500
LINES_PER_SECOND = 20.0
REPORT_PAUSE = 2.0
# What is read in one slice of time; a process that prints more waits for the next one.
SLICE = 0.05
BYTES_PER_SLICE = 512 * 1024


class WorkerOutput:
    """Takes lines: keeps the last ones, and logs as many as the log can bear.

    ``clock`` gives seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._name = name
        self._clock = clock
        self._credit = float(LINES_AT_ONCE)
        self._credited_at = clock()
        self._left_out = 0
        self._reported_at = clock()

    def take(self, line: str) -> None:
        """Keeps and, unless there are too many, logs one line."""
        self.tail.append(line)
        now = self._clock()
        earned = (now - self._credited_at) * LINES_PER_SECOND
        self._credit = min(self._credit + earned, float(LINES_AT_ONCE))
        self._credited_at = now
        if self._credit >= 1.0:
            self._credit -= 1.0
            self.report()
            LOG.info("%s: %s", self._name, line)
            return
        self._left_out += 1
        if now - self._reported_at >= REPORT_PAUSE:
            self.report()

    def report(self) -> None:
        """Logs how many lines were left out since the last report."""
        if self._left_out:
            LOG.warning(
                "interpreter %s prints too much: %d lines were left out here",
                self._name,
                self._left_out,
            )
        self._left_out = 0
        self._reported_at = self._clock()


class LineProtocol(asyncio.Protocol):
    """Cuts a stream of bytes into lines; one without an end is cut at the limit.

    A stream that is faster than the daemon should read is read with pauses: then whoever
    writes to it waits.
    """

    def __init__(self, output: WorkerOutput) -> None:
        self.ended = asyncio.Event()
        self._output = output
        self._rest = b""
        self._transport: asyncio.ReadTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._slice_began = self._loop.time()
        self._read = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_LIMIT:
            lines.append(self._rest[:LINE_LIMIT])
            self._rest = self._rest[LINE_LIMIT:]
        for line in lines:
            self._output.take(line[: 2 * LINE_LIMIT].decode(errors="backslashreplace").rstrip())
        self._keep_pace(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._rest:
            self._output.take(self._rest.decode(errors="backslashreplace"))
        self._output.report()
        self.ended.set()

    def _keep_pace(self, size: int) -> None:
        now = self._loop.time()
        if now - self._slice_began > SLICE:
            self._slice_began, self._read = now, 0
        self._read += size
        if self._read > BYTES_PER_SLICE and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_at(self._slice_began + SLICE, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
