"""The daemon's log: one line an event, and nothing that only looks like a mistake."""

from __future__ import annotations

import ast
import asyncio
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from grpc._cython import cygrpc

import opdispatch_server
from opdispatch_server import logs
from opdispatch_server.log_fields import FIELDS, TRACEBACK, Event, fields
from opdispatch_server.log_repetition import FloodFilter
from opdispatch_server.logs import configure_logging, is_no_cancellation
from tests.import_graph import parse


@contextmanager
def root_logging(stream: io.StringIO, log_format: str) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, own = root.handlers[:], root.level, logs._own
    configure_logging("info", log_format, stream)
    try:
        yield
    finally:
        root.handlers[:], root.level, logs._own = handlers, level, own


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    with root_logging(stream, "json"):
        yield stream


def test_a_record_is_one_json_object_with_its_fields(stream: io.StringIO) -> None:
    about = fields(Event.LIBRARY_LOADED, library="image", version=2)
    logging.getLogger("opdispatch.x").warning("two\nlines", extra=about)
    entry = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert (entry["level"], entry["logger"]) == ("warning", "opdispatch.x")
    assert entry["message"] == "two\nlines"
    assert (entry["event"], entry["library"], entry["version"]) == ("library_loaded", "image", 2)
    assert not {"operator", "identity", "traceback"} & entry.keys()  # what does not apply


def test_human_line_shows_fields_that_its_message_does_not_mention() -> None:
    stream = io.StringIO()
    with root_logging(stream, "human"):
        about = fields(Event.KERNEL_ERROR, operator="a::f", call=7, traceback="File x, line 1")
        logging.getLogger("opdispatch.x").error("the kernel of a::f raised 7", extra=about)
        logging.getLogger("theirs").warning("careful")
    first, traceback, second = stream.getvalue().splitlines()
    assert first.endswith("error   the kernel of a::f raised 7 call=7")
    assert traceback == "  File x, line 1"
    assert second.endswith("warning theirs: careful")


def test_every_field_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    section = text[text.index("### Logs") :]
    assert [name for name in (*FIELDS, TRACEBACK) if f"`{name}`" not in section] == []


def test_every_record_of_ours_has_fields() -> None:
    """A call of ``LOG`` without ``extra=`` is a record that programs cannot read."""
    bare = [
        f"{path}:{node.lineno}"
        for path in Path(opdispatch_server.__file__).parent.rglob("*.py")
        for node in ast.walk(parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "LOG"
        and "extra" not in {keyword.arg for keyword in node.keywords}
    ]
    assert bare == []


def test_flood_of_records_that_are_alike_is_a_few_lines() -> None:
    now = 0.0
    flood = FloodFilter(lambda: now)
    passed = []
    for number in range(10_000):
        about = fields(Event.INTERNAL_ERROR, operator="a::f")
        values = {"msg": "the call of %s failed", "args": (number,), **about}
        record = logging.makeLogRecord(values)
        if flood.filter(record):
            passed.append(record)
        now += 0.01
    assert len(passed) < 10
    assert passed[0].getMessage() == "the call of 0 failed"
    assert "like it were left out before)" in passed[-1].getMessage()
    told = sum(1 + getattr(record, "left_out", 0) for record in passed)
    assert told + next(iter(flood._known.values())).left_out == 10_000


def test_no_death_and_no_change_is_ever_left_out() -> None:
    flood = FloodFilter(lambda: 0.0)
    for event in (Event.INTERPRETER_ENDED, Event.LIBRARY_UNLOADED, Event.KERNEL_ERROR):
        record = logging.makeLogRecord({"msg": "the same", **fields(event)})
        assert all(flood.filter(record) for _ in range(100))


def test_only_grpc_records_of_cancelled_calls_are_dropped(
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


def test_no_record_forges_a_line_or_moves_the_cursor() -> None:
    spell = "\x1b[2J\x9b31m\u202e\r\n12:00:00 info    all is well\u2028\x7f"
    logs = {}
    for log_format in ("human", "json"):
        stream = io.StringIO()
        with root_logging(stream, log_format):
            about = fields(Event.KERNEL_ERROR, operator=spell, traceback=f"File x\n{spell}")
            logging.getLogger("opdispatch.x").error("the kernel raised %s", spell[1:], extra=about)
            try:
                raise ValueError(spell)
            except ValueError:
                logging.getLogger(f"theirs{spell}").exception("failed")
        logs[log_format] = stream.getvalue()
        assert not {c for c in logs[log_format] if not c.isprintable()} - {"\n"}
        assert not [line for line in logs[log_format].splitlines() if line[:8] == "12:00:00"]
    assert len([line for line in logs["human"].splitlines() if line[0] != " "]) == 2
    assert [json.loads(line)["logger"] for line in logs["json"].splitlines()] == [
        "opdispatch.x",
        f"theirs{spell}",
    ]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), cygrpc.ExecuteBatchError("batch")])
def test_grpc_records_of_vanished_clients_are_dropped(error: BaseException):
    def record_of(raised: BaseException) -> logging.LogRecord:
        info = (type(raised), raised, None)
        return logging.LogRecord("grpc._cython.cygrpc", logging.ERROR, "", 0, "x", (), info)

    assert not is_no_cancellation(record_of(error))
    assert is_no_cancellation(record_of(RuntimeError("a servicer's own")))
