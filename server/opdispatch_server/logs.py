"""Logging of the daemon and its interpreters: one line an event, on stderr.

Two formats: ``human`` for a terminal, ``json`` (one object a line) for everything that reads
logs. Fields beside the message are given as ``extra={"fields": {...}}``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "human", "json")
# For a process whose output ends up in the log of another one.
BARE = "bare"


def configure_logging(level: str, log_format: str = "auto", stream: TextIO | None = None) -> None:
    """Sends all log records of this process to ``stream`` (stderr), one line each.

    ``log_format`` "auto" means "human" if the stream is a terminal, else "json".
    """
    target = stream or sys.stderr
    if log_format == "auto":
        log_format = "human" if target.isatty() else "json"
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        logging.Formatter("%(levelname)s %(message)s")
        if log_format == BARE
        else JsonLines()
        if log_format == "json"
        else HumanLines()
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(is_no_cancellation)
    # The event loop tells at DEBUG which selector it uses; nobody asked.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """Whether a record is more than gRPC's remark that a call was cancelled.

    A client that goes away at the wrong moment makes it log a CancelledError as an error of the
    servicer, whatever the servicer does.
    """
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, logger, message, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        entry: dict[str, object] = {
            "time": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class HumanLines(logging.Formatter):
    """A record as a person reads it: time, level, message, fields; tracebacks below it."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with its traceback, if any, on the lines below."""
        time = _moment(record).astimezone().strftime("%H:%M:%S")
        fields = "".join(f" {k}={v}" for k, v in getattr(record, "fields", {}).items())
        line = f"{time} {record.levelname.lower():<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
