"""Warm-up calls of a library that is loaded into a service."""

from __future__ import annotations

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon

WORKERS = 2

COUNTED = """
import numpy as np
from opdispatch import Library

lib = Library("warm", "DEF")
lib.define("scale(Tensor x) -> Tensor")
lib.define("calls() -> int")
seen = []
lib.warmup("scale", np.ones(2))
lib.impl("scale", lambda x: seen.append(x) or {result}, "CPU")
lib.impl("calls", lambda: len(seen), "CompositeExplicitAutograd")
"""


def test_every_interpreter_makes_the_calls_before_the_library_is_seen(
    session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("warm", COUNTED.format(result="2 * x")), interpreters=2)
    assert {session.call("warm::calls") for _ in range(8)} == {1}


def test_failing_call_fails_the_load_and_the_version_before_stays(
    session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("warm", COUNTED.format(result="2 * x")))
    with pytest.raises(oc.LibraryLoadError) as caught:
        session.load(write_library("warm", COUNTED.format(result="1 // 0")))
    assert "raised ZeroDivisionError" in str(caught.value)
    assert "when its warm-up call of warm::scale ran, at warm.py:10" in str(caught.value)
    np.testing.assert_array_equal(session.call("warm::scale", np.ones(2)), [2, 2])
    assert [each.version for each in session.libraries()] == [1]


def test_call_that_hangs_ends_with_the_load_timeout(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon: RunningDaemon = start_daemon("--load-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    hanging = COUNTED.format(result="__import__('time').sleep(3600)")
    with daemon.connect() as session:
        with pytest.raises(oc.OpdispatchError, match=r"0\.5 s"):
            session.load(write_library("warm", hanging))
        assert session.libraries() == []
        session.load(write_library("warm", COUNTED.format(result="x")))
        assert session.call("warm::calls") == 1
