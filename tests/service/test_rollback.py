"""Going back to the version before, under load and after deaths."""

from __future__ import annotations

import functools
import itertools
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_scaling import pid_of, under_load

X = np.zeros(2)
CALLERS = 3


def test_rolling_back_and_forward_under_load_every_answer_is_of_an_active_version(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=3)
    with daemon.connect() as session:
        first = session.load(write_library("const", constant(1)), interpreters=2)
        second = session.load(write_library("const", constant(2)))
        assert (second.interpreters_wanted, len(second.interpreters)) == (2, 2)
        with under_load(daemon, "const::get") as load:
            for answer, version, replaced in ((1, 1, 2), (2, 2, 1), (1, 1, 2)):
                outcome = session.rollback("const")
                assert (outcome.active.version, outcome.replaced.version) == (version, replaced)
                assert outcome.active.state == "active"
                assert outcome.replaced.state == "kept"
                assert session.ops.const.get(X) == answer
                assert load.since_now()
                assert load.last == [answer] * CALLERS
        assert load.errors == []
        for answers in load.answers:  # back and forth, and no more often than it was rolled back
            changes = [b for a, b in itertools.pairwise(answers) if a != b]
            assert changes == [1, 2, 1]
        assert first.sha256 == session.libraries()[0].sha256
        third = session.load(write_library("const", constant(3)))
        assert third.version == 3
        assert [v.version for v in session.libraries(all_versions=True)] == [1, 3]
        assert session.rollback("const").active.version == 1
        assert session.unload("const", version=1).version == 3
        with pytest.raises(oc.LibraryNotFoundError, match="no version before 3 to go back to"):
            session.rollback("const")
        with pytest.raises(oc.LibraryNotFoundError, match="no library named 'nope'"):
            session.rollback("nope")
        assert session.check_invariants() == []


# Its calls take so long that those of a version end at any time of the version's return.
LINGERS = """\
import itertools, time
from opdispatch import Library

max_concurrency = 4
delays = itertools.cycle([0.0, 0.011, 0.003, 0.017, 0.007])
lib = Library("const", "DEF")
lib.define("get(Tensor x) -> int")

def get(x):
    time.sleep(next(delays))
    return {value}

lib.impl("get", get, "CPU")
"""

OUTER = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: ops.const.get(x), "CPU")
"""


def test_version_rolled_back_to_while_draining_is_not_retired(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("const", LINGERS.format(value=0)))
        session.load(write_library("outer", OUTER))
        with under_load(daemon, "const::get") as load:
            for value in range(1, 40):
                session.load(write_library("const", LINGERS.format(value=value)))
                session.rollback("const")
                # Of what the interpreter itself has registered.
                assert session.ops.outer.get(X) == 0
        assert load.errors == []
        assert session.check_invariants() == []


def test_a_version_whose_interpreters_have_died_is_rolled_back_to_from_the_store(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(1)), interpreter="worker-1")
    session.load(write_library("const", constant(2)), interpreter="worker-2")
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    assert wait_for(lambda: any(i.restarts for i in session.interpreters()))
    assert session.rollback("const").active.version == 1
    assert session.ops.const.get(X) == 1
    assert session.rollback("const").active.version == 2
    assert session.ops.const.get(X) == 2


@pytest.mark.parametrize("undo", ["rollback", "unload"])
def test_holders_of_an_old_version_serve_it_again_if_the_newest_is_lost(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, undo: str
):
    """And interpreters that never get it are not called."""
    daemon = start_daemon()
    daemon.expects_errors = True
    with daemon.connect(direct=False) as session:
        broken = tmp_path / "broken"
        fails = f"import pathlib\nassert not pathlib.Path({str(broken)!r}).exists()\n"
        session.load(write_library("const", constant(1)), interpreter="worker-1")
        session.load(write_library("const", constant(2) + fails), interpreter="worker-2")
        broken.touch()
        os.kill(pid_of(session, "worker-2"), signal.SIGKILL)
        assert wait_for(lambda: session.libraries()[0].state == "failed")
        assert wait_for(lambda: any(i.restarts and i.pid for i in session.interpreters()))
        if undo == "rollback":
            assert session.rollback("const").active.version == 1
        else:
            active = session.unload("const", version=2)
            assert active.version == 1
        assert session.libraries()[0].interpreters == ("worker-1",)
        assert [session.ops.const.get(X) for _ in range(20)] == [1] * 20
        assert session.check_invariants() == []


def test_a_rollback_that_fails_leaves_the_version_before_as_it_was(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    daemon.expects_errors = True
    broken = tmp_path / "broken"
    fails = f"import os\nassert not os.path.exists({str(broken)!r}), 'broken'"
    session.load(write_library("const", constant(1, extra=fails)), interpreter="worker-1")
    session.load(write_library("const", constant(2)), interpreters=2)
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    assert wait_for(lambda: any(i.restarts for i in session.interpreters()))
    before = session.libraries(all_versions=True)[0]
    assert before.interpreters_wanted == 1
    broken.touch()
    for undo in (session.rollback, functools.partial(session.unload, version=2)):
        with pytest.raises(oc.LibraryLoadError, match="broken"):
            undo("const")
        assert session.libraries(all_versions=True)[0] == before
    assert session.ops.const.get(X) == 2
    assert session.check_invariants() == []
