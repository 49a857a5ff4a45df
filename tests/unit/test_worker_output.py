"""Output of interpreters: last lines kept, floods held back."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import pytest

from opdispatch_server.daemon.processes.worker_output import (
    LINE_LIMIT,
    LINES_AT_ONCE,
    LINES_KEPT,
    LINES_PER_SECOND,
    LineProtocol,
    WorkerOutput,
)
from opdispatch_server.log_fields import FIELDS, fields_of, traceback_of
from opdispatch_server.log_relay import RelayLines
from tests.waits import LONGEST_WAIT


class Time:
    """Seconds, as a test wants them."""

    now = 0.0


def test_few_lines_are_all_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    output = WorkerOutput("w", lambda: 0.0)
    for number in range(100):
        output.take(f"line {number}")
    output.report()
    assert [record.message for record in caplog.records] == [f"w: line {n}" for n in range(100)]
    assert list(output.tail) == [f"line {n}" for n in range(100 - LINES_KEPT, 100)]


def test_of_a_flood_only_the_number_of_lines_is_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    output = WorkerOutput("w", lambda: Time.now)
    for number in range(100_000):
        Time.now = number / 10_000  # ten seconds
        output.take(f"line {number}")
    output.report()
    logged = [r for r in caplog.records if r.levelno == logging.INFO]
    reports = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(logged) == pytest.approx(LINES_AT_ONCE + 10 * LINES_PER_SECOND, abs=2)
    left_out = sum(int(r.message.split(":")[1].split()[0]) for r in reports)
    assert len(logged) + left_out == 100_000
    assert output.tail[-1] == "line 99999"


async def read(text: bytes) -> WorkerOutput:
    """Feed it to the daemon's side of the pipe, to its end."""
    reading, writing = os.pipe()
    output = WorkerOutput("w", asyncio.get_running_loop().time)
    transport, protocol = await asyncio.get_running_loop().connect_read_pipe(
        lambda: LineProtocol(output), os.fdopen(reading, "rb", buffering=0)
    )

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(text)

    await asyncio.to_thread(write)
    await asyncio.wait_for(protocol.ended.wait(), LONGEST_WAIT)
    transport.close()
    return output


def relayed(level: int, message: str, **attributes: object) -> bytes:
    """Return an interpreter's output for a record."""
    record = logging.makeLogRecord(
        {"name": "stats.model", "levelno": level, "msg": message, **attributes}
    )
    return RelayLines().format(record).encode() + b"\n"


def test_record_keeps_level_logger_fields_and_traceback(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    try:
        raise ValueError("broken")
    except ValueError:
        error = sys.exc_info()
    text = (
        relayed(logging.WARNING, "two\nlines")
        + b"printed without an end"  # by a kernel, in another thread
        + relayed(logging.ERROR, "failed", exc_info=error, operator="a::f", interpreter="liar")
    )
    output = asyncio.run(read(text))
    warning, printed, failed = caplog.records
    assert (warning.levelname, warning.name) == ("WARNING", "stats.model")
    assert warning.getMessage() == "two\nlines"
    assert (printed.levelname, printed.getMessage()) == ("INFO", "w: printed without an end")
    about = dict(fields_of(failed))
    assert (failed.levelno, about) == (40, {"operator": "a::f", "interpreter": "w"})
    assert traceback_of(failed).endswith("ValueError: broken")
    assert list(output.tail)[:4] == [
        "WARNING two",
        "lines",
        "printed without an end",
        "ERROR failed",
    ]


def test_longest_record_arrives_whole(caplog: pytest.LogCaptureFixture):
    message, traceback = "\U0001f600" * 10**6, "\x00" * 10**6 + "\nValueError"
    about = dict.fromkeys(FIELDS, "😀" * 10**6)
    asyncio.run(read(relayed(logging.ERROR, message, traceback=traceback, **about)))
    (record,) = caplog.records
    assert record.name == "stats.model"
    assert "characters left out" in record.getMessage()
    assert traceback_of(record).endswith("ValueError")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"msg": 1}',
        b'{"msg": "", "levelno": "x", "created": 1, "name": ""}',
        b'{"msg": "", "levelno": 1e999, "created": 1, "name": ""}',
        b'{"msg": "", "levelno": 10, "created": NaN, "name": ""}',
        b'{"msg": "", "levelno": 10, "created": 1e300, "name": ""}',
        b"[" * 50_000,
        b"\xff\xfe",
    ],
)
def test_line_that_is_no_record_is_output(text: bytes, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    output = asyncio.run(read(b"\x1e" + text + b"\nnext\n"))
    assert {record.name for record in caplog.records} == {"opdispatch.supervisor"}
    assert output.tail[-1] == "next"


def test_flood_of_output_leaves_records_out_of_the_count(caplog: pytest.LogCaptureFixture):
    output = WorkerOutput("w", lambda: 0.0)
    for _ in range(10 * LINES_AT_ONCE):
        output.take("noise")
    output.take_record(logging.makeLogRecord({"levelno": logging.ERROR, "msg": "an error"}))
    assert caplog.records[-1].getMessage() == "an error"


def test_a_stream_is_cut_into_lines_of_limited_length_and_all_of_it_is_read():
    output = asyncio.run(read(b"x" * (9 * LINE_LIMIT) + b"\nshort\n\xff without an end"))
    *long, short, last = output.tail
    assert set("".join(long)) == {"x"}
    assert max(map(len, long)) <= 2 * LINE_LIMIT
    assert (short, last) == ("short", "\\xff without an end")
    # More than one slice of time may read: the writer waits, and nothing is lost.
    output = asyncio.run(read(b"y" * 99 + b"\n" + (b"z" * 99 + b"\n") * 60_000 + b"last"))
    assert output.tail[-1] == "last"
    assert len(output.tail) == LINES_KEPT
