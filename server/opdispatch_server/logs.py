"""Logging of the daemon and its interpreters: one line per event, on stderr.

Two formats: ``human`` for a terminal, ``json`` (one object a line) for everything that reads
logs; and a third, for a process whose log the daemon takes into its own (``log_relay``). Fields
beside the message: ``log_fields``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import TextIO

from opdispatch_server.log_fields import fields_of, traceback_of
from opdispatch_server.log_relay import RelayLines
from opdispatch_server.log_repetition import FloodFilter
from opdispatch_wire.printable import escape_in_json, printable_line, printable_lines

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "human", "json")
AUDIT_LOG = "opdispatch.audit"
"""The logger of the audit log."""
RELAY = "relay"
"""The format of a process whose output the daemon reads."""

# Names as they appear in messages.
_NUMBERS = {"version": "v{}", "call": "call {}", "left_out": "{} like it"}

# The handler that ``configure_logging`` has set up, and its level.
_own: tuple[logging.Handler, int] | None = None


def configure_logging(level: str, log_format: str = "auto", stream: TextIO | None = None) -> None:
    """Send all log records of this process to ``stream`` (stderr), one line each.

    ``log_format`` "auto" means "human" if the stream is a terminal, else "json".
    """
    target = stream or sys.stderr
    if log_format == "auto":
        log_format = "human" if target.isatty() else "json"
    handler = logging.StreamHandler(target)
    formatters = {"human": HumanLines, "json": JsonLines, RELAY: RelayLines}
    handler.setFormatter(formatters[log_format]())
    handler.addFilter(FloodFilter())
    global _own
    root = logging.getLogger()
    root.handlers[:] = [handler]
    _own = (handler, logging.getLevelNamesMapping()[level.upper()])
    root.setLevel(level.upper())
    logging.getLogger("grpc._cython.cygrpc").addFilter(is_no_cancellation)
    # asyncio logs at DEBUG which selector it uses: noise.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def set_log_level(level: str) -> None:
    """Change the lowest level that is logged."""
    global _own
    if _own is not None:
        handler, _ = _own
        _own = (handler, logging.getLevelNamesMapping()[level.upper()])
        logging.getLogger().setLevel(level.upper())


def write_audit_log(path: Path) -> None:
    """Append the audit log's records to a file, as JSON, and leave them out of the other log.

    If the file is moved away, a new one is created. Raises OSError.
    """
    from opdispatch_server.private_file import PrivateFileHandler  # few daemons write one

    handler = PrivateFileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(JsonLines())
    audit = logging.getLogger(AUDIT_LOG)
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


def add_filter(added: logging.Filter) -> None:
    """Add a filter for every record of this process's log; it may add fields."""
    if _own is not None:
        handler, _ = _own
        handler.addFilter(added)


def log_regardless(
    logger: logging.Logger, level: int, message: str, extra: Mapping[str, object]
) -> None:
    """Log a record, whatever the libraries of this process have done to Python's logging.

    A library that configures logging may remove the handlers of others, or disable their loggers,
    as ``logging.config.dictConfig`` does by default.
    """
    record = logger.makeRecord(logger.name, level, "", 0, message, (), None, extra=extra)
    if _own is None:  # this process has no log of its own
        if logger.isEnabledFor(level):
            logger.handle(record)
        return
    handler, lowest = _own
    if level >= lowest:
        handler.handle(record)


def is_no_cancellation(record: logging.LogRecord) -> bool:
    """Return False for gRPC's remark that a call was cancelled.

    If a client disconnects, or its deadline passes, at the wrong moment, gRPC logs a
    CancelledError, or a failed write of the reply, as an error of the servicer, whatever the
    servicer does.
    """
    error = record.exc_info[1] if record.exc_info else None
    # The second class has no public name.
    return not (
        isinstance(error, asyncio.CancelledError) or type(error).__name__ == "ExecuteBatchError"
    )


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, and the record's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line of JSON."""
        entry: dict[str, object] = {
            "time": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry.update(fields_of(record))
        if traceback := _traceback_of(self, record):
            entry["traceback"] = traceback
        return escape_in_json(json.dumps(entry, default=str))


class HumanLines(logging.Formatter):
    """Formats records for people: time, level, message; tracebacks below.

    Fields that the message does not mention follow it. ``event`` is only in the JSON format.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line, with its traceback, if any, on the lines below."""
        time = _moment(record).astimezone().strftime("%H:%M:%S")
        message = record.getMessage()
        if not is_ours(record):  # the logger's name says most about its origin
            message = f"{record.name}: {message}"
        fields = "".join(
            f" {name}={value}"
            for name, value in fields_of(record)
            if name != "event" and not _is_mentioned(name, value, message)
        )
        line = printable_line(f"{time} {record.levelname.lower():<7} {message}{fields}")
        traceback = printable_lines(_traceback_of(self, record))
        # Indented: an exception's text may contain line ends, and look like a record.
        return f"{line}\n{indent(traceback, '  ')}" if traceback else line


def _is_mentioned(name: str, value: object, message: str) -> bool:
    if name in _NUMBERS:  # a number may be in the message for any reason
        return _NUMBERS[name].format(value) in message
    return str(value) in message


def is_ours(record: logging.LogRecord) -> bool:
    """Return whether the record comes from opdispatch itself."""
    return record.name.partition(".")[0] == "opdispatch"


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if record.exc_info:
        return formatter.formatException(record.exc_info)
    return traceback_of(record)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
