"""The output of a supervised interpreter: the last lines are kept, a flood is limited."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from opdispatch_server.library_code.unpacked_libraries import without_folders
from opdispatch_server.log_fields import Event, fields
from opdispatch_server.log_relay import RECORD_BYTES, SEPARATOR, lines_of, read_record
from opdispatch_wire.printable import printable_line

LOG = logging.getLogger("opdispatch.supervisor")

LINES_KEPT = 100
"""A crash is reported first: since Python 3.14, the stack of C functions takes some 60 lines."""
LINE_LIMIT = 4096
# This many lines may come at once; beyond that they are logged at this rate, and the rest is
# counted.
LINES_AT_ONCE = 500
LINES_PER_SECOND = 20.0
REPORT_PAUSE = 2.0
# How much is read in one step; a process that prints more waits for the next one.
SLICE = 0.05
_SEPARATOR = SEPARATOR.encode()
BYTES_PER_SLICE = 512 * 1024


class WorkerOutput:
    """Takes lines and log records: keeps the last ones, and logs them within a budget.

    Records keep their level and logger, and have a budget of their own, so that an error is not
    lost among lines of output. ``clock`` returns seconds.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.tail: deque[str] = deque(maxlen=LINES_KEPT)
        self._name = name
        self._lines = _Budget(name, "prints", "lines", clock)
        self._records = _Budget(name, "logs", "records", clock)

    def take(self, line: str) -> None:
        """Keep one line and, within the budget, log it."""
        line = printable_line(without_folders(line))
        self.tail.append(line)
        if self._lines.spend():
            extra = fields(Event.INTERPRETER_OUTPUT, interpreter=self._name)
            LOG.info("%s: %s", self._name, line, extra=extra)

    def take_record(self, record: logging.LogRecord) -> None:
        """Keep one log record as lines and, within the budget, log it."""
        # A message may contain the text of a kernel's exception, including lone surrogates.
        self.tail.extend(map(printable_line, lines_of(record)))
        record.interpreter = self._name
        if self._records.spend():
            # Not through a logger of its name: loggers are never freed, and libraries choose the
            # names.
            logging.getLogger().handle(record)

    def report(self) -> None:
        """Log how many lines were left out since the previous report."""
        self._lines.report()
        self._records.report()


class _Budget:
    """A token bucket for log lines; what exceeds it is counted."""

    def __init__(self, name: str, does: str, what: str, clock: Callable[[], float]) -> None:
        self._name, self._does, self._what = name, does, what
        self._clock = clock
        self._credit = float(LINES_AT_ONCE)
        self._left_out = 0
        self._credited_at = self._reported_at = clock()

    def spend(self) -> bool:
        """Return whether one more line may be logged; count it if not."""
        now = self._clock()
        earned = (now - self._credited_at) * LINES_PER_SECOND
        self._credit = min(self._credit + earned, float(LINES_AT_ONCE))
        self._credited_at = now
        if self._credit >= 1.0:
            self._credit -= 1.0
            self.report()
            return True
        self._left_out += 1
        if now - self._reported_at >= REPORT_PAUSE:
            self.report()
        return False

    def report(self) -> None:
        """Log how many lines were left out since the previous report, if any."""
        if self._left_out:
            LOG.warning(
                "interpreter %s %s too much: %d %s were left out here",
                self._name,
                self._does,
                self._left_out,
                self._what,
                extra=fields(
                    Event.INTERPRETER_OUTPUT, interpreter=self._name, left_out=self._left_out
                ),
            )
        self._left_out = 0
        self._reported_at = self._clock()


class LineProtocol(asyncio.Protocol):
    """Splits a stream of bytes into lines and log records; an overlong line is split at the limit.

    A stream that is too fast is read with pauses, so that the process writing to it waits.
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
        while len(self._rest) > self._limit():
            lines.append(self._rest[:LINE_LIMIT])
            self._rest = self._rest[LINE_LIMIT:]
        for line in lines:
            self._take(line)
        self._keep_pace(len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if self._rest:
            self._take(self._rest)
        self._output.report()
        self.ended.set()

    def _limit(self) -> int:
        """Return the limit on the length of the line that is being read."""
        return RECORD_BYTES if _SEPARATOR in self._rest[:LINE_LIMIT] else LINE_LIMIT

    def _take(self, line: bytes) -> None:
        # A record may arrive in the middle of a line of output.
        output, separator, text = line.partition(_SEPARATOR)
        record = read_record(text.decode(errors="replace")) if separator else None
        if record is None:
            output = line
        if output or record is None:
            text_of_line = output[: 2 * LINE_LIMIT].decode(errors="backslashreplace")
            self._output.take(text_of_line.rstrip())
        if record is not None:
            self._output.take_record(record)

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
