"""Values that clients keep, while interpreters are away or have run out of something."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import RunningDaemon, wait_for

WORKERS = 1


SMALL, LARGE = np.arange(4.0), np.arange(300_000.0)

DOUBLE = """\
import os
import resource

from opdispatch import Library

lib = Library("double", "DEF")
lib.define("double(Tensor x) -> Tensor")
lib.impl("double", lambda x: 2 * x, "CPU")
lib.define("limit_files(Tensor x) -> ()")
lib.impl("limit_files", lambda x: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096)), "CPU")
lib.define("allow_files(Tensor x) -> ()")
lib.impl("allow_files", lambda x: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)), "CPU")
"""


def program(session: oc.Session, x: Any) -> Any:
    with session.program() as calls:
        result = calls.call("double::double", x)
        calls.output(result)
    return calls.result / 2


KEEPERS: dict[str, Callable[[oc.Session, Any], Any]] = {
    "put": lambda session, x: session.put(x).numpy(),
    "put on": lambda session, x: session.put(x, on="worker-1").numpy(),
    "put device": lambda session, x: session.put(x, device="cpu").numpy(),
    "remote": lambda session, x: session.call("double::double", x, remote=True).numpy() / 2,
    "program": program,
}


def kill(session: oc.Session) -> None:
    """And wait until the daemon has no interpreter."""
    [interpreter] = session.interpreters()
    os.kill(interpreter.pid, signal.SIGKILL)
    assert wait_for(
        lambda: (
            not [
                each
                for each in session.interpreters()
                if each.pid == interpreter.pid and each.state == "ready"
            ]
        )
    )


def test_values_wait_for_an_interpreter_that_is_started_again(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("double", DOUBLE))
    names = ["put", "put on", "remote", "program"]  # it would be quarantined after a fifth death
    for name, x in zip(names, itertools.cycle([LARGE, SMALL]), strict=False):
        kill(session)
        np.testing.assert_array_equal(KEEPERS[name](session, x), x)
        assert wait_for(lambda: all(library.active for library in session.libraries()))


async def test_asyncio_values_wait_for_an_interpreter_that_is_started_again(
    daemon: RunningDaemon, session: oc.Session
):
    daemon.expects_errors = True
    async with oc.aio.connect(daemon.address) as other:
        kill(session)
        value = await other.put(SMALL)
        np.testing.assert_array_equal(await value.numpy(), SMALL)


def test_put_does_not_wait_where_no_interpreter_can_come(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0)
    with daemon.connect(timeout=60) as session:
        with pytest.raises(oc.InterpreterNotFoundError, match="there is no interpreter that could"):
            session.put(SMALL)
        with pytest.raises(oc.InterpreterNotFoundError, match="named 'worker-1'"):
            session.put(SMALL, on="worker-1")


@pytest.fixture
def without_files(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
) -> RunningDaemon:
    """Its interpreter can open nothing any more."""
    daemon.expects_errors = True  # it is replaced as soon as it notices
    session.load(write_library("double", DOUBLE))
    session.call("double::double", SMALL)
    session.call("double::limit_files", SMALL)
    return daemon


def test_values_need_no_descriptors(without_files: RunningDaemon):
    with without_files.connect(direct=False) as session:
        for keeper in KEEPERS.values():
            for x in (SMALL, LARGE):
                np.testing.assert_array_equal(keeper(session, x), x)
