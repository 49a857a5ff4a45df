"""Of several kernels for one slot the newest counts: also after a restart."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import numpy as np

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, wait_for
from tests.service.test_scaling import pid_of

X = np.zeros(2)

OVER = """\
from opdispatch import Library

lib = Library("const", "IMPL", "CPU")
lib.impl("get", lambda x: {value})
"""

# Its import takes as long as a test likes, once there is a file "slow".
SLOW = """\
import os, time
from opdispatch import Library

lib = Library("const", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
folder = {folder!r}
if os.path.exists(os.path.join(folder, "slow")):
    open(os.path.join(folder, "entered"), "w").close()
    while not os.path.exists(os.path.join(folder, "open")):
        time.sleep(0.005)
"""


def test_unloading_a_kept_version_leaves_the_order_as_it_was(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("const", constant(2)))
        session.load(write_library("over", OVER.format(value=3)))
        assert session.ops.const.get(X) == 3
        session.unload("const", version=1)
        assert session.ops.const.get(X) == 3
    first.signal(signal.SIGKILL)
    first.wait()
    with start_daemon(workers=1).connect() as session:
        assert session.ops.const.get(X) == 3


def test_publication_during_a_rollback_precedes_the_rolled_back_kernel(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    first = start_daemon(workers=2)
    first.expects_errors = True
    with first.connect() as session:
        text = SLOW.format(folder=str(tmp_path))
        session.load(write_library("const", text), interpreter="worker-1")
        session.load(write_library("const", constant(2)), interpreter="worker-2")
        os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
        assert wait_for(lambda: any(i.restarts for i in session.interpreters()))
        (tmp_path / "slow").touch()
        with Background(session.rollback, "const") as rollback:
            assert wait_for((tmp_path / "entered").exists)
            with first.connect() as other:
                other.load(write_library("over", OVER.format(value=3)))
            (tmp_path / "open").touch()
            rollback.result()
        assert session.ops.const.get(X) == 1
    first.signal(signal.SIGKILL)
    first.wait()
    with start_daemon(workers=2).connect() as session:
        assert session.ops.const.get(X) == 1


OUTER = """\
from opdispatch import Library, ops

lib = Library("outer", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: ops.const.get(x), "CPU")
"""


def test_a_library_that_comes_back_after_a_death_stays_below_what_was_published_after_it(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """In the daemon, in interpreters that forward to both, and in those that hold one of them."""
    daemon = start_daemon(workers=4)
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)), interpreter="worker-1")
        session.load(write_library("over", OVER.format(value=3)), interpreter="worker-2")
        session.load(write_library("top", OVER.format(value=4)), interpreter="worker-3")
        session.load(write_library("outer", OUTER), interpreter="worker-4")
        for name in ("const", "over", "const", "top"):
            (holder,) = next(v.interpreters for v in session.libraries() if v.name == name)
            pid = pid_of(session, holder)
            os.kill(pid, signal.SIGKILL)
            assert wait_for(functools.partial(settled_without, session, pid, 4))
            assert session.ops.const.get(X) == 4
            assert session.ops.outer.get(X) == 4
            assert session.check_invariants() == []
        session.unload("top")
        assert (session.ops.const.get(X), session.ops.outer.get(X)) == (3, 3)
        session.unload("over")
        assert (session.ops.const.get(X), session.ops.outer.get(X)) == (1, 1)


def test_libraries_that_are_lost_together_come_back_in_their_order(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    """Also where the first one of them takes longest."""
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    with daemon.connect() as session:
        text = SLOW.format(folder=str(tmp_path))
        session.load(write_library("const", text), interpreter="worker-1")
        session.load(write_library("over", OVER.format(value=3)), interpreter="worker-1")
        (tmp_path / "slow").touch()
        pid = pid_of(session, "worker-1")
        os.kill(pid, signal.SIGKILL)
        assert wait_for((tmp_path / "entered").exists)
        assert wait_for(lambda: {v.name: v.active for v in session.libraries()}["over"])
        (tmp_path / "open").touch()
        assert wait_for(lambda: settled_without(session, pid, 2))
        assert session.ops.const.get(X) == 3


def settled_without(session: oc.Session, pid: int, workers: int) -> bool:
    """Whether that interpreter has been replaced, and every library is in force."""
    pids = {each.pid for each in session.interpreters()}
    return (
        len(pids) == workers
        and pid not in pids
        and all(library.active for library in session.libraries())
    )
