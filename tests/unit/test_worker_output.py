"""What interpreters print: last lines kept, floods held back."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest

from opdispatch_server.processes.worker_output import (
    LINE_LIMIT,
    LINES_AT_ONCE,
    LINES_KEPT,
    LINES_PER_SECOND,
    LineProtocol,
    WorkerOutput,
)


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


def test_a_stream_is_cut_into_lines_of_limited_length_and_all_of_it_is_read():
    async def read(text: bytes) -> WorkerOutput:
        reading, writing = os.pipe()
        output = WorkerOutput("w", asyncio.get_running_loop().time)
        transport, protocol = await asyncio.get_running_loop().connect_read_pipe(
            lambda: LineProtocol(output), os.fdopen(reading, "rb", buffering=0)
        )

        def write() -> None:
            with os.fdopen(writing, "wb") as stream:
                stream.write(text)

        await asyncio.to_thread(write)
        await asyncio.wait_for(protocol.ended.wait(), 20)
        transport.close()
        return output

    output = asyncio.run(read(b"x" * (9 * LINE_LIMIT) + b"\nshort\n\xff without an end"))
    *long, short, last = output.tail
    assert set("".join(long)) == {"x"}
    assert max(map(len, long)) <= 2 * LINE_LIMIT
    assert (short, last) == ("short", "\\xff without an end")
    # More than one slice of time may read: the writer waits, and nothing is lost.
    output = asyncio.run(read(b"y" * 99 + b"\n" + (b"z" * 99 + b"\n") * 60_000 + b"last"))
    assert output.tail[-1] == "last"
    assert len(output.tail) == LINES_KEPT
