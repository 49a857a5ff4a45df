"""The audit log: one record an action, whatever comes of it."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import nullcontext
from pathlib import Path

import pytest

from opdispatch_server import logs
from opdispatch_server.access.audit import audited, note
from opdispatch_wire.errors import LibraryNotFoundError


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "done"),
        (LibraryNotFoundError("no"), "library_not_found"),
        (asyncio.CancelledError(), "cancelled"),
        (KeyError("x"), "internal (KeyError)"),
    ],
)
def test_an_action_is_one_record_with_its_outcome(
    caplog: pytest.LogCaptureFixture, error: BaseException | None, outcome: str
):
    caplog.set_level(logging.INFO, logs.AUDIT_LOG)
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, audited("unload", "alice from 192.0.2.7", library="image"):
        if error is not None:
            raise error
    (record,) = caplog.records
    assert record.getMessage() == f"unload image by alice from 192.0.2.7: {outcome}"
    found = {
        name: getattr(record, name, None) for name in ("event", "action", "library", "outcome")
    }
    assert found == {"event": "audit", "action": "unload", "library": "image", "outcome": outcome}


def test_a_file_has_the_audit_log_alone_and_is_begun_anew_when_it_is_moved(tmp_path: Path):
    path, audit = tmp_path / "audit.log", logging.getLogger(logs.AUDIT_LOG)
    before = audit.handlers[:], audit.level, audit.propagate
    try:
        logs.write_audit_log(path)
        logging.getLogger("opdispatch.other").warning("something else")
        note("drain", "carol", interpreter="worker-1")
        path.rename(tmp_path / "audit.log.1")
        note("drain", "carol\n", interpreter="worker-2")
        for handler in audit.handlers:
            handler.close()
    finally:
        audit.handlers[:], audit.level, audit.propagate = before
    for name, interpreter in (("audit.log.1", "worker-1"), ("audit.log", "worker-2")):
        (line,) = (tmp_path / name).read_text().splitlines()
        assert json.loads(line)["interpreter"] == interpreter
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
