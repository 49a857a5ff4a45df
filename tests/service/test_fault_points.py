"""The daemon or an interpreter is killed at each named point: nothing is half done afterwards.

With ``OPDISPATCH_ALL_FAULTS``, under every change that comes by there, as in ``make stress``; else
under one or two of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.fault_points import VARIABLE, FaultPoint
from opdispatch_wire.v1 import registry_pb2 as pb
from opdispatch_wire.v1 import registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.warm_daemon import run_command_line

pytestmark = pytest.mark.slow

X = np.zeros(2)

Change = Callable[[oc.Session, WriteLibrary], object]


def load_new(session: oc.Session, write: WriteLibrary) -> object:
    return session.load(write("new", constant(10, namespace="new")))


def load_version(session: oc.Session, write: WriteLibrary) -> object:
    return session.load(write("const", constant(3)))


def unload(session: oc.Session, write: WriteLibrary) -> object:
    return session.unload("const")


def unload_newest(session: oc.Session, write: WriteLibrary) -> object:
    return session.unload("const", version=2)


@contextmanager
def registry_of(session: oc.Session) -> Iterator[registry_pb2_grpc.RegistryServiceStub]:
    with grpc.insecure_channel(session.address.replace("unix://", "unix:")) as channel:
        yield registry_pb2_grpc.RegistryServiceStub(channel)  # type: ignore[no-untyped-call]


def roll_back(session: oc.Session, write: WriteLibrary) -> object:
    with registry_of(session) as registry:
        return registry.RollbackLibrary(pb.RollbackLibraryRequest(name="const"))


# What is there before each change, and after it: (library, version, state).
BEFORE = [("const", 1, "kept"), ("const", 2, "active")]
AFTER = {
    load_new: [*BEFORE, ("new", 1, "active")],
    load_version: [("const", 2, "kept"), ("const", 3, "active")],
    unload: [],
    unload_newest: [("const", 1, "active")],
    roll_back: [("const", 1, "active"), ("const", 2, "kept")],
}
ANSWERS = {1: 1, 2: 2, 3: 3}

LOADS = (load_new, load_version)
UNLOADS = (unload, unload_newest)
P = FaultPoint
# Up to the commit of the journal nothing has happened; from then on, all of it.
NOT_DONE = [(P.JOURNAL_BEGUN, load_version), (P.JOURNAL_BEGUN, unload)]
NOT_DONE += [(point, load_new) for point in (P.STAGED, P.CONTENT_DRAFTED, P.CONTENT_STORED)]
DONE = [(P.JOURNAL_COMMITTED, load_new), (P.JOURNAL_COMMITTED, roll_back)]
DONE += [(P.BEFORE_ACKNOWLEDGEMENT, load_version), (P.INTERPRETER_COMMITTED, load_version)]
DONE += [(P.PUBLISHED, unload_newest), (P.WITHDRAWN, unload)]
if "OPDISPATCH_ALL_FAULTS" in os.environ:
    NOT_DONE += [(P.JOURNAL_BEGUN, change) for change in (load_new, unload_newest, roll_back)]
    NOT_DONE += [(P.STAGED, load_version)]
    DONE += [(P.JOURNAL_COMMITTED, change) for change in (load_version, *UNLOADS)]
    DONE += [(P.BEFORE_ACKNOWLEDGEMENT, unload), (P.WITHDRAWN, unload_newest)]
    DONE += [(P.INTERPRETER_COMMITTED, change) for change in (load_new, unload_newest)]
    DONE += [(P.PUBLISHED, change) for change in (*LOADS, roll_back)]

OF_INTERPRETERS = {P.INTERPRETER_STAGED, P.INTERPRETER_PUBLISHED, P.INTERPRETER_RETIRED}
OF_IMPORTS = {P.IMPORT_VERIFIED, P.IMPORT_DECIDED, P.IMPORT_ASIDE}


def name_case(value: object) -> str:
    return value.value if isinstance(value, FaultPoint) else getattr(value, "__name__", str(value))


def test_every_point_is_hit_by_a_test():
    hit = {point for point, _ in (*NOT_DONE, *DONE)}
    assert hit | OF_INTERPRETERS | OF_IMPORTS == set(FaultPoint)


def listed(session: oc.Session) -> list[tuple[str, int, str]]:
    return [(v.name, v.version, v.state) for v in session.libraries(all_versions=True)]


def check_served(session: oc.Session, expected: list[tuple[str, int, str]]) -> None:
    """Check that every listed operator answers, and no other."""
    assert listed(session) == expected
    active = {name: version for name, version, state in expected if state == "active"}
    namespaces = {operator.name.partition("::")[0] for operator in session.operators()}
    assert namespaces == set(active)
    for name, version in active.items():
        assert session.call(f"{name}::get", X) == (10 if name == "new" else ANSWERS[version])
    assert session.check_invariants() == []


@pytest.mark.parametrize(
    ("point", "change", "done"),
    [
        *((point, change, False) for point, change in NOT_DONE),
        *((point, change, True) for point, change in DONE),
    ],
    ids=name_case,
)
def test_a_daemon_that_dies_there_has_done_all_of_it_or_nothing(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
    point: FaultPoint,
    change: Change,
    done: bool,
):
    armed = tmp_path / "armed"
    first = start_daemon(workers=1, environment={VARIABLE: f"{point.value}={armed}"})
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("const", constant(2)))
        check_served(session, BEFORE)
        armed.touch()
        with pytest.raises((oc.DaemonUnavailableError, grpc.RpcError)):
            change(session, write_library)
    assert first.wait() == -signal.SIGKILL
    assert not armed.exists()
    second = start_daemon(workers=1)
    with second.connect() as session:
        check_served(session, AFTER[change] if done else BEFORE)  # type: ignore[index]
        if not done:
            change(session, write_library)
        check_served(session, AFTER[change])  # type: ignore[index]
    drafts = [path for path in (tmp_path / "state").rglob("*") if "draft" in path.name]
    assert not drafts


@pytest.mark.parametrize(
    ("point", "wanted"),
    [(P.JOURNAL_BEGUN, 1), (P.JOURNAL_COMMITTED, 2), (P.BEFORE_ACKNOWLEDGEMENT, 2)],
    ids=name_case,
)
def test_a_daemon_that_dies_while_it_scales_wants_as_many_as_before_or_after(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
    point: FaultPoint,
    wanted: int,
):
    armed = tmp_path / "armed"
    first = start_daemon(environment={VARIABLE: f"{point.value}={armed}"})
    with first.connect() as session, registry_of(session) as registry:
        session.load(write_library("const", constant(1)))
        armed.touch()
        with pytest.raises(grpc.RpcError):
            registry.ScaleLibrary(pb.ScaleLibraryRequest(name="const", interpreters=2))
    assert first.wait() == -signal.SIGKILL
    second = start_daemon()
    with second.connect() as session:
        (library,) = session.libraries()
        assert (library.interpreters_wanted, len(library.interpreters)) == (wanted, wanted)


def interpreters_are_back(session: oc.Session) -> bool:
    return len(session.interpreters()) == 2


@pytest.mark.parametrize("point", [P.INTERPRETER_STAGED, P.INTERPRETER_PUBLISHED], ids=name_case)
@pytest.mark.parametrize("change", LOADS if "OPDISPATCH_ALL_FAULTS" in os.environ else LOADS[1:])
def test_an_interpreter_that_dies_while_it_loads_leaves_nothing_of_it(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
    point: FaultPoint,
    change: Change,
):
    armed = tmp_path / "armed"
    daemon = start_daemon(environment={VARIABLE: f"{point.value}={armed}"})
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("const", constant(2)))
        armed.touch()
        with pytest.raises(oc.InterpreterDiedError, match="went away"):
            change(session, write_library)
        assert wait_for(lambda: interpreters_are_back(session) and is_served(session))
        check_served(session, BEFORE)
    daemon.signal(signal.SIGKILL)
    daemon.wait()
    again = start_daemon()
    with again.connect() as session:
        check_served(session, BEFORE)  # the record of the load was undone
        change(session, write_library)
        check_served(session, AFTER[change])  # type: ignore[index]


def is_served(session: oc.Session) -> bool:
    """Whether what an interpreter has lost by its death is there again."""
    return ("const", 2, "active") in listed(session)


def test_an_interpreter_that_dies_while_it_unloads_changes_nothing_about_it(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    armed = tmp_path / "armed"
    daemon = start_daemon(environment={VARIABLE: f"{P.INTERPRETER_RETIRED.value}={armed}"})
    daemon.expects_errors = True
    with daemon.connect() as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("other", constant(5, namespace="other")))
        armed.touch()
        session.unload("const")
        assert not armed.exists()
        assert wait_for(lambda: interpreters_are_back(session))
        assert wait_for(lambda: listed(session) == [("other", 1, "active")])
        assert session.ops.other.get(X) == 5
        assert session.check_invariants() == []


def run_state(*options: object, fault: str = "") -> subprocess.CompletedProcess[str]:
    words = ["state", *map(str, options)]
    return run_command_line(words, env={**os.environ, VARIABLE: fault}, cwd=Path.cwd())


def stop(daemon: RunningDaemon) -> None:
    assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("point", "done"),
    [(P.IMPORT_VERIFIED, False), (P.IMPORT_DECIDED, True), (P.IMPORT_ASIDE, True)],
    ids=name_case,
)
def test_an_import_that_dies_there_has_done_all_of_it_or_nothing(
    start_daemon: StartDaemon,
    write_library: WriteLibrary,
    tmp_path: Path,
    point: FaultPoint,
    done: bool,
):
    state, archive = tmp_path / "state", tmp_path / "backup.zip"
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        exported = run_state("export", archive, "--state", state)
        assert exported.returncode == 0, exported.stderr
        session.load(write_library("const", constant(2)))
        refused = run_state("import", archive, "--state", state)
        assert refused.returncode == 1
        assert f"another daemon uses the state folder {state}" in refused.stderr
    stop(first)
    killed = run_state("import", archive, "--state", state, fault=point.value)
    assert killed.returncode == -signal.SIGKILL
    second = start_daemon(workers=1)
    with second.connect() as session:
        check_served(session, [("const", 1, "active")] if done else BEFORE)
    stop(second)
    assert not [path for path in state.iterdir() if "draft" in path.name]
    imported = run_state("import", archive, "--state", state)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout.startswith("imported 1 library with 1 upload, up to event 1\n")
    third = start_daemon(workers=1)
    with third.connect() as session:
        check_served(session, [("const", 1, "active")])
