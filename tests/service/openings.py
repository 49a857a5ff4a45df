"""Reports of sessions on the streams to interpreters that they have tried to open."""

from __future__ import annotations

import logging
import queue

from tests.waits import LONGEST_WAIT


class Openings(logging.Handler):
    """Their log lines, one after the other."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is about direct calls."""
        if "directly" in record.msg:
            self._said.put(record.getMessage())

    def next(self) -> str:
        """The next one; it must come in time."""
        return self._said.get(timeout=LONGEST_WAIT)

    def has_next(self) -> bool:
        """Whether the next one has come already."""
        return not self._said.empty()
