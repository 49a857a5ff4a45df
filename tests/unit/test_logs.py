"""The daemon's log: one line an event, and nothing that only looks like a mistake."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from opdispatch_server.logs import configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("info", "json", stream)
    yield stream
    root.handlers[:], root.level = handlers, level


def test_a_record_is_one_json_object_with_its_fields(stream: io.StringIO) -> None:
    logging.getLogger("opdispatch.x").warning("two\nlines", extra={"fields": {"library": "image"}})
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert (entry["level"], entry["logger"]) == ("warning", "opdispatch.x")
    assert (entry["message"], entry["library"]) == ("two\nlines", "image")


def test_what_grpc_says_of_cancelled_calls_is_left_out_and_nothing_else(
    stream: io.StringIO,
) -> None:
    logger = logging.getLogger("grpc._cython.cygrpc")
    for error in (asyncio.CancelledError(), ValueError("a mistake")):
        logger.error("Exception not handled", exc_info=error)
    logger.error("Something else")
    messages = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [m.get("traceback", "").splitlines()[-1:] for m in messages] == [
        ["ValueError: a mistake"],
        [],
    ]
