"""A daemon that is killed and started again serves what it has acknowledged."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import opdispatch_client as oc
from opdispatch_wire.v1 import registry_pb2 as pb
from opdispatch_wire.v1 import registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.interpreter_starts import at_each_start
from tests.service.libraries import IMAGE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
Change = Callable[[oc.Session], object]


def kill(daemon: RunningDaemon) -> None:
    daemon.signal(signal.SIGKILL)
    daemon.wait()


def health_of(daemon: RunningDaemon, service: str) -> int:
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=LONGEST_WAIT).status)


def answers(daemon: RunningDaemon) -> bool:
    try:
        with daemon.connect() as session:
            return session.server_info.pid == daemon.process.pid
    except oc.DaemonUnavailableError:
        return False


def is_active(session: oc.Session, name: str) -> bool:
    return any(library.name == name and library.active for library in session.libraries())


def facts(library: oc.Library) -> tuple[object, ...]:
    """Return the facts that a restart must not change."""
    return (
        *(library.name, library.version, library.sha256, library.source),
        *(library.loaded_at, library.active, library.state),
    )


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_libraries_are_there_again_with_their_versions(
    start_daemon: StartDaemon, write_library: WriteLibrary, end: signal.Signals
):
    first = start_daemon()
    with first.connect() as session:
        session.load(write_library("image", IMAGE))
        for number in range(3):
            session.load(write_library("const", constant(number)))
        session.load(write_library("gone", constant(7, namespace="gone")))
        session.unload("gone")
        write_library("module_of_mine", constant(3, namespace="mine"))
        session.load("module_of_mine")
        before = [facts(library) for library in session.libraries(all_versions=True)]
        operators = session.operators()
    first.signal(end)
    first.wait()
    second = start_daemon()
    with second.connect() as session:
        assert [facts(library) for library in session.libraries(all_versions=True)] == before
        assert session.operators() == operators
        assert session.ops.const.get(X) == 2
        np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X)
        assert session.check_invariants() == []
        assert health_of(second, "library/const") == health_pb2.HealthCheckResponse.SERVING
        # What is kept below comes back, and the numbers go on where they were.
        active = session.unload("const", version=3)
        assert active is not None
        assert active.version == 2
        assert session.ops.const.get(X) == 1
        assert session.load(write_library("const", constant(9))).version == 4
        assert session.load(write_library("gone", constant(8, namespace="gone"))).version == 2


def test_the_same_content_is_loaded_already_after_a_restart(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    first = start_daemon("--library", str(path), workers=1)
    kill(first)
    second = start_daemon("--library", str(path), workers=1)
    with second.connect() as session:
        assert [library.version for library in session.libraries()] == [1]
        assert session.load(path).already_loaded


def test_the_newest_kernel_of_a_slot_is_still_the_newest(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    def override(value: int) -> str:
        return (
            "from opdispatch import Library\n"
            'lib = Library("const", "IMPL")\n'
            f'lib.impl("get", lambda x: {value}, "CPU", allow_override=True)\n'
        )

    first = start_daemon()
    with first.connect() as session:
        session.load(write_library("const", constant(0)))
        for name in ("zebra", "ant", "bee"):
            session.load(write_library(name, override(len(name))))
        session.unload("bee")
        assert session.ops.const.get(X) == 3
        session.load(write_library("zebra", override(50)))  # the newest of all again
        assert session.ops.const.get(X) == 50
    kill(first)
    second = start_daemon()
    with second.connect() as session:
        assert session.ops.const.get(X) == 50
        session.unload("zebra")
        assert session.ops.const.get(X) == 3
        session.unload("ant")
        assert session.ops.const.get(X) == 0


def test_overloads_of_several_libraries_are_tried_in_the_order_that_they_were(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    def overload(name: str) -> str:
        return (
            "import time\n"
            "from opdispatch import Library\n"
            f"time.sleep({0.3 if name == 'slow' else 0})\n"
            'lib = Library("const", "FRAGMENT")\n'
            f'lib.define("get.{name}(Tensor x) -> str")\n'
            f'lib.impl("get.{name}", lambda x: "{name}", "CPU")\n'
        )

    first = start_daemon(workers=2)
    with first.connect() as session:
        session.load(write_library("slow", overload("slow")))
        session.load(write_library("quick", overload("quick")))
        assert session.ops.const.get(X) == "slow"
    kill(first)
    second = start_daemon(workers=2)
    with second.connect() as session:
        assert session.ops.const.get(X) == "slow"


def test_a_library_that_needs_another_at_its_import_is_loaded_after_it(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon()
    slow = "import time\ntime.sleep(0.2)\n" + constant(1, namespace="slow")
    needy = "from opdispatch import ops\nimport numpy as np\n" + constant(2, namespace="needy")
    needy += "assert ops.slow.get(np.zeros(2)) == 1\n"
    with first.connect() as session:
        session.load(write_library("slow", slow))
        session.load(write_library("needy", needy))
    kill(first)
    second = start_daemon()
    with second.connect() as session:
        assert session.ops.needy.get(X) == 2


def test_a_library_that_does_not_load_any_more_is_listed_with_its_error(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    modules = tmp_path / "modules"
    modules.mkdir()
    module = modules / "fleeting.py"
    module.write_text(constant(1, namespace="fleeting"))
    environment = {"PYTHONPATH": ":".join([str(modules), *filter(None, sys.path)])}
    first = start_daemon(workers=1, environment=environment)
    with first.connect() as session:
        session.load("fleeting")
        session.load(write_library("const", constant(5)))
    kill(first)
    module.unlink()
    second = start_daemon(workers=1, environment=environment)
    second.expects_errors = True
    with second.connect() as session:
        states = {library.name: library.state for library in session.libraries()}
        assert states == {"const": "active", "fleeting": "failed"}
        error = next(library.error for library in session.libraries() if library.error)
        assert "ModuleNotFoundError" in error
        assert session.ops.const.get(X) == 5
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        assert health_of(second, "library/fleeting") == not_serving
        assert health_of(second, "") == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(oc.OperatorNotFoundError, match="could not be loaded again"):
            session.call("fleeting::get", X)
        with pytest.raises(oc.LibraryLoadError, match="fleeting"):
            session.load("fleeting")
        module.write_text(constant(1, namespace="fleeting"))
        loaded = session.load("fleeting")
        assert (loaded.state, loaded.error) == ("active", "")
        assert session.ops.fleeting.get(X) == 1
        assert session.check_invariants() == []


def test_a_library_whose_content_is_damaged_fails_alone(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    path = write_library("const", constant(5))
    with first.connect() as session:
        loaded = session.load(path)
        session.load(write_library("other", constant(6, namespace="other")))
    kill(first)
    (first.folder / "state" / "libraries" / loaded.sha256).write_text("tampered with")
    second = start_daemon(workers=1)
    second.expects_errors = True
    with second.connect() as session:
        assert [(v.name, v.state) for v in session.libraries()] == [
            ("const", "failed"),
            ("other", "active"),
        ]
        assert f"content {loaded.sha256[:12]} of the library is damaged" in (
            session.libraries()[0].error
        )
        assert session.ops.other.get(X) == 6
        again = session.load(path)
        assert (again.version, again.state) == (1, "active")
        assert session.ops.const.get(X) == 5


def test_a_failed_library_can_be_unloaded_and_stays_so(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(4)))
        loaded = session.load(write_library("const", constant(5)))
    kill(first)
    (first.folder / "state" / "libraries" / loaded.sha256).unlink()
    second = start_daemon(workers=1)
    second.expects_errors = True
    with second.connect() as session:
        assert [v.state for v in session.libraries(all_versions=True)] == ["kept", "failed"]
        active = session.unload("const", version=2)
        assert active is not None
        assert session.ops.const.get(X) == 4
    kill(second)
    third = start_daemon(workers=1)
    with third.connect() as session:
        assert [(v.version, v.state) for v in session.libraries()] == [(1, "active")]
        assert session.ops.const.get(X) == 4


def test_libraries_wait_for_an_interpreter_if_there_is_none(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(5)))
    kill(first)
    second = start_daemon(workers=0)
    with second.connect() as session:
        assert [(v.name, v.state) for v in session.libraries()] == [("const", "waiting")]
        with pytest.raises(oc.RefusedError, match="'const'"):
            session.call("const::get", X)
    kill(second)
    third = start_daemon(workers=1)
    with third.connect() as session:
        assert session.ops.const.get(X) == 5


def test_an_import_that_hangs_at_the_start_keeps_no_other_library_from_serving(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon("--load-timeout", "2")
    flag = first.folder / "hang"
    hang = f"import os, time\nwhile os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
    with first.connect() as session:
        session.load(write_library("stuck", hang + constant(1, namespace="stuck")))
        session.load(write_library("const", constant(5)))
    kill(first)
    flag.touch()
    second = start_daemon("--load-timeout", "2")
    second.expects_errors = True
    with second.connect() as session:
        assert wait_for(lambda: is_active(session, "const"))
        assert session.ops.const.get(X) == 5
        flag.unlink()
        assert wait_for(lambda: [v.state for v in session.libraries()] == ["active"] * 2)
        assert session.ops.stuck.get(X) == 1


def test_restart_takes_about_as_long_as_the_first_start(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    started = time.monotonic()
    first = start_daemon(workers=1)
    with first.connect() as session:
        for number in range(10):
            name = f"n{number}"
            session.load(write_library(name, constant(number, namespace=name)))
    killed = time.monotonic()
    kill(first)
    again = time.monotonic()
    second = start_daemon(workers=1)
    with second.connect() as session:
        assert session.call("n7::get", X) == 7
    # It takes about as long; this catches what is out of all proportion, on whatever machine.
    assert time.monotonic() - again < 15 * (killed - started)


@contextmanager
def registry_of(daemon: RunningDaemon) -> Iterator[registry_pb2_grpc.RegistryServiceStub]:
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        yield registry_pb2_grpc.RegistryServiceStub(channel)  # type: ignore[no-untyped-call]


def test_replica_counts_and_rollbacks_and_drained_interpreters_are_remembered(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=3)
    with first.connect() as session, registry_of(first) as registry:
        for number in (1, 2):
            session.load(write_library("const", constant(number)))
        session.load(write_library("pair", constant(7, namespace="pair")))
        registry.ScaleLibrary(pb.ScaleLibraryRequest(name="const", interpreters=3))
        registry.ScaleLibrary(pb.ScaleLibraryRequest(name="pair", interpreters=2))
        registry.RollbackLibrary(pb.RollbackLibraryRequest(name="const"))
        assert session.ops.const.get(X) == 1
    kill(first)
    second = start_daemon(workers=3)
    with second.connect() as session, registry_of(second) as registry:
        assert [facts(v)[:2] + facts(v)[-2:] for v in session.libraries(all_versions=True)] == [
            ("const", 1, True, "active"),
            ("const", 2, False, "kept"),
            ("pair", 1, True, "active"),
        ]
        # As soon as it is ready, not some time later.
        assert {v.name: len(v.interpreters) for v in session.libraries()} == {"const": 3, "pair": 2}
        assert session.ops.const.get(X) == 1
        registry.RollbackLibrary(pb.RollbackLibraryRequest(name="const"))  # forward again
        assert session.ops.const.get(X) == 2
        registry.DrainInterpreter(pb.DrainInterpreterRequest(name="worker-2"))
    kill(second)
    third = start_daemon(workers=3)
    with third.connect() as session, registry_of(third) as registry:
        states = {interpreter.name: interpreter.state for interpreter in session.interpreters()}
        assert states["worker-2"] == "drained"
        assert session.ops.const.get(X) == 2
        assert all("worker-2" not in library.interpreters for library in session.libraries())
        registry.DrainInterpreter(pb.DrainInterpreterRequest(name="worker-2", undo=True))
    kill(third)
    fourth = start_daemon(workers=3)
    with fourth.connect() as session:
        assert all(interpreter.state == "ready" for interpreter in session.interpreters())
        assert {v.name: len(v.interpreters) for v in session.libraries()} == {"const": 3, "pair": 2}


def test_daemon_is_not_ready_before_its_libraries_are_restored(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    first = start_daemon(workers=1)
    flag, begun = tmp_path / "hold", tmp_path / "begun"
    hold = (
        f"import os, time\nopen({str(begun)!r}, 'w').close()\n"
        f"while os.path.exists({str(flag)!r}): time.sleep(0.01)\n"
    )
    with first.connect() as session:
        session.load(write_library("slow", hold + constant(1, namespace="slow")))
    kill(first)
    begun.unlink()
    flag.touch()
    second = RunningDaemon(tmp_path, workers=1)
    try:
        assert wait_for(begun.exists)
        second.addresses = first.addresses
        not_serving = health_pb2.HealthCheckResponse.NOT_SERVING
        assert health_of(second, "") == not_serving
        assert health_of(second, "library/slow") == not_serving
        hurried = second.connect(timeout=0.5)
        with hurried as session, pytest.raises(oc.RefusedError, match="'slow'"):
            session.call("slow::get", X)
        flag.unlink()
        second.wait_until_ready()
        assert health_of(second, "") == health_pb2.HealthCheckResponse.SERVING
        assert health_of(second, "library/slow") == health_pb2.HealthCheckResponse.SERVING
    finally:
        flag.unlink(missing_ok=True)
        second.clean_up()


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session.rollback("const"),
        lambda session: session.unload("const", version=2),
    ],
    ids=["rollback", "unload"],
)
def test_a_version_is_brought_back_though_no_interpreter_is_ready_yet(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path, change: Change
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        for number in (1, 2):
            session.load(write_library("const", constant(number)))
    kill(first)
    gate = tmp_path / "gate"
    environment = at_each_start(
        tmp_path, f"while not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    )
    second = RunningDaemon(tmp_path, workers=1, environment=environment)
    try:
        second.addresses = first.addresses
        assert wait_for(lambda: answers(second))
        with second.connect() as session, second.connect() as other:
            with Background(change, session) as bringing_back:
                assert other.interpreters() == []
                gate.touch()
                bringing_back.result()
            assert other.ops.const.get(X) == 1
        second.wait_until_ready()
    finally:
        gate.touch()
        second.clean_up()


def test_an_isolated_library_has_interpreters_of_its_own_again(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("const", constant(1)))
        session.load(write_library("alone", constant(2, namespace="alone")), isolated=True)
    kill(first)
    second = start_daemon(workers=1)
    with second.connect() as session:
        libraries = {library.name: library for library in session.libraries()}
        assert libraries["const"].interpreters == ("worker-1",)
        assert libraries["alone"].interpreters == ("alone@1",)
        assert (libraries["alone"].isolated, libraries["alone"].state) == (True, "active")
        assert session.ops.alone.get(X) == 2
        again = session.load(write_library("alone", constant(2, namespace="alone")), isolated=True)
        assert again.already_loaded
        session.unload("alone")
        assert wait_for(lambda: len(session.interpreters()) == 1)
