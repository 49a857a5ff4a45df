"""The transfer of an interpreter's log records to the daemon's log.

An interpreter that the daemon started logs to its standard error, which the daemon reads together
with what kernels print. To preserve level, logger and fields, a record is JSON between a record
separator and the end of the line (a JSON text sequence, RFC 7464); any other line is output.
Libraries can write such lines, too, just as they can log: nothing except the log depends on them.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from opdispatch_server.log_fields import TRACEBACK, fields_of, traceback_of

SEPARATOR: Final = "\x1e"
RECORD_BYTES: Final = 192 * 1024
"""The longest record, with its separator."""

# Characters; JSON encodes each in at most 12 bytes, so that all fit into a record.
_MESSAGE_LIMIT = 4000
_TRACEBACK_LIMIT = 6000
_NAME_LIMIT = 200
_LAST_MOMENT = 1e11  # seconds since 1970; datetime ends with the year 9999


class RelayLines(logging.Formatter):
    """Formats records for the daemon."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        entry: dict[str, object] = {
            "created": record.created,
            "levelno": record.levelno,
            "name": record.name[:_NAME_LIMIT],
            "msg": cut(record.getMessage(), _MESSAGE_LIMIT),
        }
        entry |= {
            name: value[:_NAME_LIMIT] if isinstance(value, str) else value
            for name, value in fields_of(record)
        }
        traceback = (
            self.formatException(record.exc_info) if record.exc_info else traceback_of(record)
        )
        if traceback:
            entry[TRACEBACK] = cut(traceback, _TRACEBACK_LIMIT)
        return SEPARATOR + json.dumps(entry)


def read_record(text: str) -> logging.LogRecord | None:
    """Return the record in the text after a separator; None if there is none."""
    try:
        entry = json.loads(text)
        if not isinstance(entry, dict) or not isinstance(entry["msg"], str):
            return None
        level, created = int(entry["levelno"]), float(entry["created"])
        if not 0 <= created < _LAST_MOMENT:
            return None
        record = logging.makeLogRecord(
            {
                "created": created,
                "levelno": level,
                "levelname": logging.getLevelName(level),
                "name": str(entry["name"]),
                "msg": entry["msg"],
                "args": (),
            }
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    fields = logging.makeLogRecord(entry)
    for name, value in fields_of(fields):
        setattr(record, name, value)
    if traceback := traceback_of(fields):
        setattr(record, TRACEBACK, traceback)
    return record


def lines_of(record: logging.LogRecord) -> list[str]:
    """Return a record as lines of output: level and message, then its traceback."""
    text = f"{record.levelname} {record.getMessage()}"
    return [*text.splitlines(), *traceback_of(record).splitlines()]


def cut(text: str, limit: int) -> str:
    """Return the text, or only its two ends: the last line of a traceback says most."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
