"""Real daemons for tests. Each test's teardown checks that nothing of them is left."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client.lanes.call_plan import CallPlan
from opdispatch_wire.planned_requests import RequestForm
from tests.service import shared_memory
from tests.service.doors import Doors
from tests.service.libraries import IMAGE
from tests.service.openings import Openings
from tests.service.packages import write_wheel
from tests.service.running_daemon import RunningDaemon, wait_for

StartDaemon = Callable[..., RunningDaemon]
WriteLibrary = Callable[..., Path]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the daemons of a test that has failed have logged."""
    report = yield
    if report.when == "call" and report.failed:
        for daemon in RunningDaemon.alive:
            report.sections.append((f"log of the daemon in {daemon.folder}", daemon.end_of_log()))
    return report


@pytest.fixture(autouse=True)
def without_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """With OPDISPATCH_WITHOUT_PLANS, make every call the general way, on both sides."""
    if os.environ.get("OPDISPATCH_WITHOUT_PLANS"):
        monkeypatch.setattr(CallPlan, "of", lambda *args: None)


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the calls that follow a plan."""
    found: list[int] = []
    write = RequestForm.write

    def noting(self: RequestForm, leaves: Any, timeout: float | None, number: int) -> bytes:
        found.append(number)
        return write(self, leaves, timeout, number)

    monkeypatch.setattr(RequestForm, "write", noting)
    return found


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Start a daemon with the options given, and wait until it is ready."""
    running: list[RunningDaemon] = []

    def start(*options: str, **settings: Any) -> RunningDaemon:
        daemon = RunningDaemon(tmp_path, *options, **settings)
        running.append(daemon)
        daemon.wait_until_ready()
        return daemon

    yield start
    failures = []
    for daemon in running:
        try:
            daemon.clean_up()
        except Exception as error:  # the others must go too
            failures.append(error)
    if failures:
        raise failures[0]


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> int:
    """How many interpreters ``daemon`` has: WORKERS of the test's module, which starts sooner."""
    return getattr(request.module, "WORKERS", 2)


@pytest.fixture
def daemon(start_daemon: StartDaemon, workers: int) -> RunningDaemon:
    """A daemon of the test's own."""
    return start_daemon(workers=workers)


@pytest.fixture
def session(daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session with the test's own daemon."""
    with daemon.connect() as session:
        yield session


@pytest.fixture(scope="module")
def shared_workers(request: pytest.FixtureRequest) -> int:
    """How many interpreters ``shared_daemon`` has: SHARED_WORKERS of the tests' module."""
    return getattr(request.module, "SHARED_WORKERS", 2)


@pytest.fixture(scope="module")
def shared_daemon(
    tmp_path_factory: pytest.TempPathFactory, shared_workers: int
) -> Iterator[RunningDaemon]:
    """One daemon for the tests of a module that do it no harm."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("shared"), workers=shared_workers)
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def lent_daemon(shared_daemon: RunningDaemon) -> Iterator[RunningDaemon]:
    """The shared daemon, which is after the test what it was before.

    What the test has loaded is unloaded. Nothing runs, no value is kept, and every interpreter is
    the one that it was.
    """
    with shared_daemon.connect() as session:
        libraries = {library.name for library in session.libraries()}
        operators, interpreters = _definitions(session), _identities(session)
    yield shared_daemon
    with shared_daemon.connect() as session:
        for library in session.libraries():
            if library.name not in libraries:
                session.unload(library.name)
        assert session.check_invariants() == []
        assert _definitions(session) == operators
        assert wait_for(lambda: _identities(session) == interpreters)
        assert wait_for(lambda: is_idle(session))


@pytest.fixture
def shared(lent_daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session with the shared daemon."""
    with lent_daemon.connect() as session:
        yield session


def _definitions(session: oc.Session) -> list[oc.OperatorSummary]:
    return [dataclasses.replace(each, kernel_errors=0) for each in session.operators()]


def _identities(session: oc.Session) -> dict[str, tuple[int, int]]:
    return {each.name: (each.pid, each.restarts) for each in session.interpreters()}


def is_idle(session: oc.Session) -> bool:
    """Whether no call waits or runs, and no value is kept."""
    return not any(
        each.calls_queued or each.calls_in_flight or each.remote_values
        for each in session.interpreters()
    )


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    """Doors at which the kernels of ``door_library`` wait."""
    doors = Doors(tmp_path)
    yield doors
    doors.close()


@pytest.fixture
def write_library(tmp_path: Path) -> WriteLibrary:
    """Write a kernel library: ``write_library("image", text)`` gives ``image.py``."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two versions of one package, and another package."""
    folder = tmp_path_factory.mktemp("wheels")
    for version in ("1.0", "2.0"):
        write_wheel(folder, "tinypack", version)
    write_wheel(folder, "otherpack", "7.0")
    return folder


@pytest.fixture(scope="module")
def standard(shared_daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session with the shared daemon, which has the standard's operators."""
    with shared_daemon.connect() as session:
        session.load("opdispatch.array_library")
        yield session
        session.unload("array_library")


@pytest.fixture(scope="module")
def loaded(shared_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon with the image library, for all tests of this module."""
    path = shared_daemon.folder / "image.py"
    path.write_text(IMAGE)
    with shared_daemon.connect() as session:
        session.load(path)
    return shared_daemon


@pytest.fixture(scope="module")
def loaded_tcp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon on TCP with one interpreter, which has the image library."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("tcp"), workers=1, listen=["127.0.0.1:0"])
    try:
        daemon.wait_until_ready()
        path = daemon.folder / "image.py"
        path.write_text(IMAGE)
        with daemon.connect() as session:
            session.load(path)
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def openings() -> Iterator[Openings]:
    """Yield a record of the streams that sessions log to open."""
    handler, log = Openings(), logging.getLogger("opdispatch.client")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture(scope="module")
def mem_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with one interpreter, which holds the library of ``shared_memory``."""
    daemon = RunningDaemon(tmp_path_factory.mktemp("mem"), workers=1)
    try:
        daemon.wait_until_ready()
        shared_memory.load(daemon)
        yield daemon
    finally:
        daemon.clean_up()


@pytest.fixture
def bystander(mem_daemon: RunningDaemon) -> Iterator[oc.Session]:
    """A session of a client that does nothing wrong; it works before and after."""
    x = shared_memory.X
    with mem_daemon.connect() as session:
        for _ in range(3):
            assert (session.ops.mem.add(x, x) == 2).all()
        yield session
        assert (session.ops.mem.add(x, x) == 2).all()
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())


@pytest.fixture(scope="module")
def channel(loaded: RunningDaemon) -> Iterator[grpc.Channel]:
    """A plain gRPC channel, which checks nothing before it sends."""
    target = loaded.address.replace("unix://", "unix:")
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(target, options=options) as channel:
        yield channel


@pytest.fixture
def unharmed(loaded: RunningDaemon) -> Iterator[oc.Session]:
    """A session; after the test, the daemon is as it was before."""
    with loaded.connect() as session:
        yield session
        x = np.arange(3.0)
        np.testing.assert_array_equal(session.ops.image.pipeline(x), 1 - x * 3)
        assert session.check_invariants() == []
        assert all(interpreter.restarts == 0 for interpreter in session.interpreters())
