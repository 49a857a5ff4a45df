"""Libraries with interpreters of their own, and the memory that unloading gives back."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_wire.library_source import load_source
from opdispatch_wire.v1 import registry_pb2, registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, journal_held, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
MIB = 2**20

GREEDY = """\
import numpy as np
from opdispatch import Library

ballast = np.ones({size}, dtype=np.uint8)
lib = Library({namespace!r}, "DEF")
lib.define("size(Tensor x) -> int")
lib.define("pid(Tensor x) -> int")
lib.impl("size", lambda x: ballast.size, "CPU")
lib.impl("pid", lambda x: __import__("os").getpid(), "CPU")
"""


def greedy(namespace: str, mib: int) -> str:
    """A library that holds that much memory."""
    return GREEDY.format(namespace=namespace, size=mib * MIB)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def load_under_name(session: oc.Session, path: Path, name: str) -> None:
    """Load a library into an interpreter of its own, when the name of that is free again."""

    def has_the_name() -> bool:
        if session.load(path, isolated=True).interpreters == (name,):
            return True
        session.unload(path.stem)
        return False

    assert wait_for(has_the_name)


def test_an_isolated_library_has_its_interpreter_to_itself(
    shared: oc.Session, write_library: WriteLibrary
):
    path = write_library("alone", greedy("alone", 1))
    library = shared.load(path, isolated=True)
    assert library.isolated
    assert library.interpreters == ("alone@1",)
    (own,) = (i for i in shared.interpreters() if i.name == "alone@1")
    assert own.reserved_for == "library alone"
    assert own.pid == shared.ops.alone.pid(X)
    for number in range(4):
        other = write_library(f"c{number}", constant(number, namespace=f"c{number}"))
        assert shared.load(other).interpreters[0].startswith("worker-")
    second = shared.load(write_library("other", greedy("other", 1)), isolated=True)
    assert second.interpreters == ("other@1",)
    assert shared.load(path, isolated=True).already_loaded
    # Elsewhere it is another version.
    assert shared.load(path).version == 2
    assert shared.ops.alone.pid(X) != own.pid
    assert shared.check_invariants() == []


def test_unloading_gives_back_all_that_an_isolated_library_has(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("greedy", greedy("greedy", 100)), isolated=True)
    pid = shared.ops.greedy.pid(X)
    unloaded = shared.unload_and_measure("greedy")
    assert unloaded.active is None
    assert unloaded.memory_exact
    assert unloaded.memory_bytes is not None
    assert unloaded.memory_bytes > 100 * MIB
    assert wait_for(lambda: not is_running(pid))
    assert {i.name for i in shared.interpreters()} == {"worker-1", "worker-2"}


def test_unloading_from_a_shared_interpreter_says_what_can_be_seen(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("greedy", greedy("greedy", 100)))
    shared.ops.greedy.size(X)
    unloaded = shared.unload_and_measure("greedy")
    assert not unloaded.memory_exact
    assert unloaded.memory_bytes is not None
    assert 90 * MIB < unloaded.memory_bytes < 120 * MIB
    assert len(shared.interpreters()) == 2


def test_the_next_interpreter_of_a_drained_ones_name_is_not_drained(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        [name] = session.load(path, isolated=True).interpreters
        session.drain(name)
        session.unload("const")
        load_under_name(session, path, name)
        assert session.ops.const.get(X) == 1
    daemon.stop()
    with start_daemon(workers=1).connect() as session:
        assert session.ops.const.get(X) == 1
        assert "drain" not in "".join(each.state for each in session.interpreters())


def test_an_interpreter_that_ends_while_its_drain_is_recorded_leaves_no_drain_to_the_next_one(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon(workers=1)
    fails = f"open({str(tmp_path / 'begun')!r}, 'w')\nopen({str(tmp_path / 'fifo')!r})\n1 / 0\n"
    os.mkfifo(tmp_path / "fifo")
    with daemon.connect() as session, daemon.connect(timeout=0.5) as hasty:
        with Background(session.load, write_library("const", fails), isolated=True) as load:
            assert wait_for((tmp_path / "begun").exists)
            [own] = (each for each in session.interpreters() if each.reserved_for)
            with journal_held(daemon):
                with pytest.raises(oc.DeadlineExceededError):
                    hasty.drain(own.name)
                (tmp_path / "fifo").write_text("")
                with pytest.raises(oc.LibraryLoadError, match="ZeroDivisionError"):
                    load.result()
                assert wait_for(lambda: not is_running(own.pid))
                assert wait_for(lambda: len(session.interpreters()) == 1)
        load_under_name(session, write_library("const", constant(1)), own.name)
        assert "drain" not in "".join(each.state for each in session.interpreters())
    daemon.stop()
    with start_daemon(workers=1).connect() as session:
        assert "drain" not in "".join(each.state for each in session.interpreters())


def test_an_interpreter_that_has_died_and_is_not_started_again_leaves_no_drain_to_the_next_one(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        [name] = session.load(path, isolated=True).interpreters
        session.drain(name)
        [own] = (each for each in session.interpreters() if each.reserved_for)
        os.kill(own.pid, signal.SIGKILL)
        assert wait_for(lambda: len(session.interpreters()) == 1)
        session.unload("const")
        load_under_name(session, path, name)
        assert "drain" not in "".join(each.state for each in session.interpreters())


def test_calls_in_flight_finish_before_the_interpreter_ends(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    shared.load(write_library("gate", GATE), isolated=True)
    (own,) = (i for i in shared.interpreters() if i.reserved_for)
    with Background(shared.ops.gate.wait, X, str(tmp_path), answer=5) as call:
        assert wait_for((tmp_path / "entered-5").exists)
        assert shared.unload_and_measure("gate").memory_exact
        assert is_running(own.pid)
        (tmp_path / "open").touch()
        assert call.result() == 5
    assert wait_for(lambda: not is_running(own.pid))


def test_an_interpreter_that_was_drained_leaves_although_the_disk_is_full(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        [name] = session.load(write_library("gate", GATE), isolated=True).interpreters
        (own,) = (i for i in session.interpreters() if i.reserved_for)
        session.drain(name)
        with Background(session.ops.gate.wait, X, str(tmp_path), answer=5) as call:
            assert wait_for((tmp_path / "entered-5").exists)
            session.unload("gate")
            log = tmp_path / "state" / "journal" / "journal.sqlite3-wal"
            full = (log.stat().st_size, resource.RLIM_INFINITY)
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, full)
            (tmp_path / "open").touch()
            assert call.result() == 5
        assert wait_for(lambda: not is_running(own.pid))
        assert wait_for(lambda: name not in [i.name for i in session.interpreters()])
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
        [again] = session.load(write_library("gate", GATE), isolated=True).interpreters
        assert "drain" not in {i.name: i.state for i in session.interpreters()}[again]


def test_a_new_version_gets_a_new_interpreter_and_the_old_one_goes_when_it_is_not_kept(
    shared: oc.Session, write_library: WriteLibrary
):
    pids = []
    for value in range(3):
        path = write_library("greedy", greedy("greedy", 1) + f"value = {value}\n")
        version = shared.load(path, isolated=True).version
        pids.append(shared.ops.greedy.pid(X))
    assert len(set(pids)) == 3
    assert wait_for(lambda: not is_running(pids[0]))
    assert is_running(pids[1])
    shared.unload("greedy", version=version)
    assert shared.ops.greedy.pid(X) == pids[1]
    assert wait_for(lambda: not is_running(pids[2]))
    shared.unload("greedy")
    assert wait_for(lambda: not is_running(pids[1]))
    assert len(shared.interpreters()) == 2


def test_a_load_that_fails_leaves_no_interpreter_behind(
    shared: oc.Session, write_library: WriteLibrary
):
    with pytest.raises(oc.LibraryLoadError, match="ZeroDivisionError"):
        shared.load(write_library("bad", "1 / 0"), isolated=True)
    assert wait_for(lambda: len(shared.interpreters()) == 2)
    assert shared.load(write_library("bad", constant(4)), isolated=True).interpreters[0]
    assert shared.ops.const.get(X) == 4


def test_an_isolated_interpreter_that_dies_comes_back_with_its_library(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("greedy", greedy("greedy", 1)), isolated=True)
    pid = session.ops.greedy.pid(X)
    os.kill(pid, signal.SIGKILL)
    assert wait_for(
        lambda: (
            all(library.active for library in session.libraries())
            and any(i.restarts == 1 for i in session.interpreters())
        ),
    )
    assert session.ops.greedy.pid(X) != pid
    assert session.libraries()[0].interpreters == ("greedy@1",)
    # And it can still be told apart from one that is to end.
    unloaded = session.unload_and_measure("greedy")
    assert unloaded.memory_exact
    assert wait_for(lambda: len(session.interpreters()) == 2)


def test_a_daemon_without_workers_can_hold_isolated_libraries(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=0)
    name = "a rather long name of a library " * 6
    with daemon.connect() as session:
        library = session.load(write_library("const", constant(1)), name=name, isolated=True)
        assert library.interpreters == ("a_rather_long_name_of_a_library_a_rather@1",)
        assert session.ops.const.get(X) == 1
        with pytest.raises(oc.InterpreterNotFoundError):
            session.load(write_library("plain", constant(2, namespace="plain")))
        session.unload(name)
        assert wait_for(lambda: not session.interpreters())


def test_an_isolated_library_is_held_by_as_many_interpreters_as_it_should_be(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    path = write_library("greedy", greedy("greedy", 1))
    with grpc.insecure_channel(lent_daemon.address.replace("unix://", "unix:")) as channel:
        stub = registry_pb2_grpc.RegistryServiceStub(channel)

        def load(interpreters: int) -> registry_pb2.Library:
            request = load_source(path, isolated=True).request
            request.interpreters = interpreters
            return stub.LoadLibrary(request, timeout=LONGEST_WAIT).library

        def scale(interpreters: int) -> registry_pb2.Library:
            request = registry_pb2.ScaleLibraryRequest(name="greedy", interpreters=interpreters)
            return stub.ScaleLibrary(request, timeout=LONGEST_WAIT).library

        def holders() -> set[int]:
            return {i.pid for i in shared.interpreters() if i.reserved_for == "library greedy"}

        assert load(2).interpreters == ["greedy@1", "greedy@2"]
        assert {shared.ops.greedy.pid(X) for _ in range(8)} == holders()
        assert len(scale(3).interpreters) == 3
        assert {shared.ops.greedy.pid(X) for _ in range(9)} == holders()
        scale(1)
        assert wait_for(lambda: len(holders()) == 1)
        assert shared.ops.greedy.pid(X) in holders()
        # The next version gets as many as the one before it.
        scale(2)
        first = holders()
        path.write_text(path.read_text() + "value = 1\n")
        assert len(load(0).interpreters) == 2
        assert shared.ops.greedy.pid(X) not in first
        stub.RollbackLibrary(
            registry_pb2.RollbackLibraryRequest(name="greedy"), timeout=LONGEST_WAIT
        )
        assert shared.ops.greedy.pid(X) in first
        assert shared.unload_and_measure("greedy").memory_exact
    assert wait_for(lambda: len(shared.interpreters()) == 2)
    assert shared.check_invariants() == []


def test_racing_loads_of_an_isolated_library_share_its_interpreter(
    shared: oc.Session, write_library: WriteLibrary
):
    path = write_library("raced", greedy("raced", 1))
    calls = [Background(shared.load, path, isolated=True) for _ in range(4)]
    for call in calls:
        call.__enter__()
    assert {call.result().interpreters for call in calls} == {("raced@1",)}
    assert len(shared.interpreters()) == 3
    shared.unload("raced")
    assert wait_for(lambda: len(shared.interpreters()) == 2)


WAITS = """\
import os, time
from opdispatch import Library

lib = Library("late", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
open({entered!r}, "w").close()
while not os.path.exists({open!r}):
    time.sleep(0.005)
"""


def test_cancelled_waiter_keeps_no_interpreters_from_the_next_one(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    entered, gate = tmp_path / "entered", tmp_path / "open"
    first = write_library("late", WAITS.format(entered=str(entered), open=str(gate)))
    (tmp_path / "next").mkdir()
    second = tmp_path / "next" / "late.py"
    second.write_text(constant(2, namespace="late"))
    daemon = start_daemon(workers=1)
    with daemon.connect() as session, daemon.connect() as other:
        with Background(session.load, first, isolated=True) as load:
            assert wait_for(entered.exists)
            with daemon.connect(timeout=1.0) as hasty, pytest.raises(oc.OpdispatchError):
                hasty.load(second, isolated=True)
            with Background(other.load, second, isolated=True) as again:
                assert wait_for(
                    lambda: sum(i.name.startswith("late@") for i in session.interpreters()) == 2
                )
                gate.touch()
                assert load.result().version == 1
                assert again.result().version == 2
        assert session.ops.late.get(X) == 2
        session.unload("late")
        assert wait_for(lambda: [i.name for i in session.interpreters()] == ["worker-1"])


BREAKABLE = """\
import os
from opdispatch import Library

if os.path.exists({broken!r}):
    raise RuntimeError("broken")
lib = Library("frail", "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: 1, "CPU")
"""


def test_a_failed_library_that_fails_again_keeps_no_interpreters(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    daemon.expects_errors = True
    broken = tmp_path / "broken"
    path = write_library("frail", BREAKABLE.format(broken=str(broken)))
    session.load(path, isolated=True)
    broken.touch()
    (own,) = (i for i in session.interpreters() if i.name == "frail@1")
    assert own.pid is not None
    os.kill(own.pid, signal.SIGKILL)
    assert wait_for(lambda: session.libraries()[0].state == "failed")
    with pytest.raises(oc.LibraryLoadError, match="broken"):
        session.load(path, isolated=True)
    assert wait_for(lambda: len(session.interpreters()) == 2)
    broken.unlink()
    assert session.load(path, isolated=True).version == 1
    session.unload("frail")
    assert wait_for(lambda: len(session.interpreters()) == 2)
