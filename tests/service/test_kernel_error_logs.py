"""Errors of kernels in the daemon's log: once each, whichever way the call came, and counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.errors import KernelError
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import IMAGE
from tests.service.running_daemon import RunningDaemon, wait_for

X = np.ones(3)

CALLER = """\
from opdispatch import Library, ops

lib = Library("caller", "DEF")
lib.define("boom(Tensor x) -> Tensor")
lib.define("wrong(Tensor x) -> int")
lib.impl("boom", lambda x: ops.image.boom(x), "CPU")
lib.impl("wrong", lambda x: "no number", "CPU")
"""

TALKER = """\
import logging
import warnings

from opdispatch import Library

LOG = logging.getLogger("talker.model")
LOG.warning("imported")
lib = Library("talker", "DEF")
lib.define("talk(Tensor x) -> ()")


def talk(x):
    print("printed", flush=True)
    LOG.error("loud")
    LOG.debug("not asked for")
    warnings.warn("old", stacklevel=1)
    try:
        raise ValueError("caught")
    except ValueError:
        LOG.exception("excused")


lib.impl("talk", talk, "CPU")
"""


# Does to Python's logging what programs do that think they are alone.
LOUDMOUTH = """\
import logging
import logging.config

from opdispatch import Library

{setup}
lib = Library("loudmouth", "DEF")
lib.define("nothing() -> ()")
lib.impl("nothing", lambda: None, "CompositeExplicitAutograd")
"""


def errors_in(daemon: RunningDaemon) -> list[dict[str, Any]]:
    return [each for each in daemon.log_records() if each.get("event") == "kernel_error"]


def fails(call: Callable[[], object]) -> None:
    with pytest.raises(KernelError):
        call()


def account(records: list[dict[str, Any]]) -> int:
    return sum(1 + record.get("left_out", 0) for record in records)


@pytest.mark.parametrize(
    "options",
    [{"direct": True}, {"direct": False}, {"lane": "stream"}, {"lane": "grpc"}],
    ids=["direct", "through the daemon", "stream", "grpc"],
)
def test_every_kernel_error_is_logged_once_and_counted(
    start_daemon: StartDaemon, write_library: WriteLibrary, options: dict[str, Any]
):
    daemon = start_daemon(workers=1)
    with daemon.connect(**options) as session:
        session.load(write_library("image", IMAGE))
        for _ in range(424):
            fails(lambda: session.ops.image.boom(X))
        assert wait_for(lambda: account(errors_in(daemon)) == 424)
        assert wait_for(lambda: session.libraries()[0].kernel_errors == 424)
        (interpreter,) = session.interpreters()
        (boom,) = session.operators("image::boom")
        assert (interpreter.kernel_errors, boom.kernel_errors) == (424, 424)
        assert session.describe("image::boom").kernel_errors == 424
        assert session.describe("image::scale").kernel_errors == 0
    records = errors_in(daemon)
    assert len(records) < 20
    first = records[0]
    assert (first["level"], first["operator"]) == ("error", "image::boom")
    assert (first["library"], first["version"], first["interpreter"]) == ("image", 1, "worker-1")
    assert first["exception"] == "ValueError"
    assert "no picture" in first["message"]
    assert first["traceback"].count("File ") == 1  # the kernel's own frame
    assert 'in boom\n    raise ValueError(f"no picture: {x.shape}")' in first["traceback"]


def test_error_of_a_nested_call_is_logged_by_its_own_interpreter_alone(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    with daemon.connect() as session:
        session.load(write_library("image", IMAGE), interpreter="worker-1")
        session.load(write_library("caller", CALLER), interpreter="worker-2")
        fails(lambda: session.ops.caller.boom(X))
        counts = {"image": 1, "caller": 1}  # both have failed a call
        assert wait_for(
            lambda: {each.name: each.kernel_errors for each in session.libraries()} == counts
        )
    assert daemon.stop() == 0
    (record,) = errors_in(daemon)
    assert (record["operator"], record["interpreter"]) == ("image::boom", "worker-1")


def test_step_of_a_program_and_wrong_return_are_logged_with_their_operator(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    with daemon.connect() as session:
        session.load(write_library("image", IMAGE), interpreter="worker-1")
        session.load(write_library("caller", CALLER), interpreter="worker-1")
        with pytest.raises(KernelError), session.program() as p:
            p.output(p.ops.image.boom(p.ops.image.scale(X)))
        with pytest.raises(oc.ReturnError):
            session.ops.caller.wrong(X)
    assert daemon.stop() == 0
    found = [(r["operator"], r["library"], r["exception"]) for r in errors_in(daemon)]
    assert found == [
        ("image::boom", "image", "ValueError"),
        ("caller::wrong", "caller", "ReturnError"),
    ]


def test_log_records_of_a_library_keep_level_and_logger(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("talker", TALKER))
        session.ops.talker.talk(X)
    assert daemon.stop() == 0
    talk = [
        (record["logger"], record["level"], record["message"])
        for record in daemon.log_records()
        if record["logger"] == "talker.model"
    ]
    assert talk == [
        ("talker.model", "warning", "imported"),
        ("talker.model", "error", "loud"),
        ("talker.model", "error", "excused"),
    ]
    records = {record["message"]: record for record in daemon.log_records()}
    assert records["worker-1: printed"]["level"] == "info"
    loud = records["loud"]
    assert (loud["interpreter"], loud["library"]) == ("worker-1", "talker")
    assert loud["operator"] == "talker::talk"
    assert loud["call"] > 0
    assert loud["version"] == 1
    imported = records["imported"]
    assert (imported["library"], imported["version"]) == ("talker", 1)
    assert "operator" not in records["imported"]
    assert records["excused"]["traceback"].endswith("ValueError: caught")
    (warned,) = [r for r in daemon.log_records() if r["logger"] == "py.warnings"]
    assert (warned["level"], "UserWarning: old" in warned["message"]) == ("warning", True)


@pytest.mark.parametrize(
    "setup",
    [
        "logging.config.dictConfig({'version': 1})  # which disables the loggers that there are",
        "logging.disable(logging.CRITICAL)",
        "logging.basicConfig(force=True, level=logging.CRITICAL)",
        "logging.shutdown(); logging.getLogger('opdispatch').setLevel(logging.CRITICAL)",
    ],
    ids=["dictConfig", "disable", "basicConfig", "shutdown"],
)
def test_no_library_silences_the_errors_of_others(
    start_daemon: StartDaemon, write_library: WriteLibrary, setup: str
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("image", IMAGE))
        session.load(write_library("loudmouth", LOUDMOUTH.format(setup=setup)))
        fails(lambda: session.ops.image.boom(X))
        assert wait_for(lambda: account(errors_in(daemon)) == 1)
    (record,) = errors_in(daemon)
    assert (record["level"], record["operator"]) == ("error", "image::boom")
