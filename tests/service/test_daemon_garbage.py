"""No request leaves anything that waits for the garbage collector, but for what gRPC leaves.

What does wait keeps all that it knows: an error, the request that it came of, with its tensors; a
version of a library, its 50,000 operators.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon, wait_for

LIBRARY = """\
# {number}
from opdispatch import Library, ops

lib = Library({name!r}, "DEF")
lib.define("plus_one(Tensor x) -> Tensor")
lib.impl("plus_one", lambda x: x + 1, "CPU")
lib.define("nested(Tensor x) -> Tensor")
lib.impl("nested", lambda x: ops.{name}.plus_one(x), "CPU")
lib.define("fail(Tensor x) -> Tensor")
lib.impl("fail", lambda x: x.no_such_attribute, "CPU")
"""
X = np.ones(4, np.float32)
LARGE = np.ones(500_000)
# A few small objects of each request; the tuples are its metadata, whose module has two names.
OF_GRPC = (
    "grpc.",
    "_cython_",
    "importlib._bootstrap._Metadatum",
    "_frozen_importlib._Metadatum",
    "builtins.tuple",
)


class GarbageDaemon(RunningDaemon):
    """One that looks at its garbage; see garbage_daemon.py."""

    def __init__(self, folder: Path) -> None:
        self.report = folder / "garbage"
        program = (str(Path(__file__).with_name("garbage_daemon.py")), str(self.report))
        super().__init__(folder, workers=1, program=program)

    def take_garbage(self) -> list[str]:
        """The types of what there is; from now on it is not there any more."""
        self.report.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        assert wait_for(self.report.exists)
        return self.report.read_text().splitlines()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GarbageDaemon]:
    daemon = GarbageDaemon(tmp_path_factory.mktemp("garbage"))
    try:
        daemon.wait_until_ready()
        with daemon.connect() as session:
            load(session, daemon.folder, "calls", 0)
        yield daemon
    finally:
        daemon.clean_up()


def load(session: oc.Session, folder: Path, name: str, number: int) -> None:
    path = folder / f"{name}.py"
    path.write_text(LIBRARY.format(name=name, number=number))
    session.load(path)


def calls(daemon: GarbageDaemon, **options: object) -> None:
    with daemon.connect(**options) as session:
        for _ in range(3):
            session.call("calls::plus_one", X)
            session.call("calls::plus_one", LARGE)
            session.call("calls::nested", X)


def refused_calls(daemon: GarbageDaemon, **options: object) -> None:
    with daemon.connect(**options) as session:
        for operator, argument in (
            ("calls::fail", X),
            ("calls::no_such", LARGE),
            ("calls::plus_one", "no tensor"),
            ("no name", X),
        ):
            with pytest.raises(oc.OpdispatchError):
                session.call(operator, argument)


def remote_values(daemon: GarbageDaemon) -> None:
    with daemon.connect() as session:
        kept = session.call("calls::plus_one", session.put(X), remote=True)
        session.call("calls::plus_one", kept)
        kept.close()
        with pytest.raises(oc.OpdispatchError):
            session.call("calls::plus_one", kept)
        with session.program() as program:
            program.output(program.ops.calls.plus_one(program.ops.calls.plus_one(X)))


def libraries(daemon: GarbageDaemon) -> None:
    folder = daemon.folder
    with daemon.connect() as session:
        for number in range(5):
            load(session, folder, "versions", number)
            session.call("versions::plus_one", X)
        session.rollback("versions")
        session.unload("versions")
        (folder / "bad.py").write_text("raise ValueError('no')")
        with pytest.raises(oc.OpdispatchError):
            session.load(folder / "bad.py")
        with pytest.raises(oc.OpdispatchError):
            session.unload("no_such")


def looks(daemon: GarbageDaemon) -> None:
    with daemon.connect() as session:
        session.operators()
        session.libraries()
        session.interpreters()
        session.describe("calls::plus_one")
        session.table("calls::plus_one")
        assert session.check_invariants() == []
        for look in (session.describe, session.table, session.revive, session.drain):
            with pytest.raises(oc.OpdispatchError):
                look("no::such")
        with pytest.raises(oc.OpdispatchError):
            session.wait_for_def("no::such", timeout=0.01)


def health(daemon: GarbageDaemon) -> None:
    with grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        next(watch)
        watch.cancel()
        with contextlib.suppress(grpc.RpcError):
            stub.Check(health_pb2.HealthCheckRequest(service="no such"))


def deaths(daemon: GarbageDaemon) -> None:
    daemon.expects_errors = True
    with daemon.connect() as session:
        for _ in range(2):
            [before] = session.interpreters()
            os.kill(before.pid, signal.SIGKILL)
            assert wait_for(lambda pid=before.pid: is_replaced(session, pid))
        session.call("calls::plus_one", X)


def is_replaced(session: oc.Session, pid: int) -> bool:
    return [i.state for i in session.interpreters() if i.pid not in (0, pid)] == ["ready"]


REQUESTS: dict[str, Callable[[GarbageDaemon], None]] = {
    "calls of the local lane": lambda daemon: calls(daemon, lane="local", direct=False),
    "calls of a stream": lambda daemon: calls(daemon, lane="stream", direct=False),
    "calls of one request each": lambda daemon: calls(daemon, lane="grpc", direct=False),
    "direct calls": calls,
    "refused calls of the local lane": lambda daemon: refused_calls(daemon, lane="local"),
    "refused calls of a stream": lambda daemon: refused_calls(daemon, lane="stream"),
    "refused calls of one request each": lambda daemon: refused_calls(daemon, lane="grpc"),
    "remote values": remote_values,
    "libraries": libraries,
    "looks": looks,
    "health": health,
    "deaths": deaths,
}


@pytest.fixture(scope="module")
def served(daemon: GarbageDaemon) -> GarbageDaemon:
    """The daemon once it has served everything: what is imported or made first of all is there."""
    for serve in REQUESTS.values():
        serve(daemon)
    return daemon


@pytest.mark.parametrize("name", REQUESTS)
def test_requests_leave_no_garbage(served: GarbageDaemon, name: str):
    served.take_garbage()
    for _ in range(2):
        REQUESTS[name](served)
    left = [kind for kind in served.take_garbage() if not kind.startswith(OF_GRPC)]
    assert left == [], "\n".join(left)


def test_a_daemon_that_has_served_everything_has_loaded_no_module_of_interpreters(
    served: GarbageDaemon,
):
    served.take_garbage()
    loaded = served.report.with_suffix(".modules").read_text().split()
    assert "opdispatch_server.daemon.lifecycle" in loaded
    assert [name for name in loaded if name.startswith("opdispatch_server.worker")] == []
