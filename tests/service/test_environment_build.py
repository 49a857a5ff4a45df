"""Environments being built: raced for, killed in the middle, waited for."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import grpc
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.daemon.environments import store
from opdispatch_wire.library_source import load_source
from opdispatch_wire.v1 import registry_pb2_grpc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.packages import (
    offline,
    reporting,
    script_metadata,
    write_slow_project,
)
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.service.test_environments import environments

pytestmark = pytest.mark.slow

X = np.zeros(2)


def test_racing_loads_of_one_set_wait_for_one_build(
    start_daemon: StartDaemon, write_library: WriteLibrary, wheels: Path
):
    daemon = start_daemon(workers=1)
    paths = [write_library(f"r{n}", reporting(f"r{n}", "tinypack")) for n in range(4)]
    lines: list[list[str]] = [[] for _ in paths]
    with daemon.connect() as session:

        def load(number: int) -> oc.LoadedLibrary:
            return session.load(
                paths[number],
                requirements=offline(wheels, "tinypack==1.0"),
                on_progress=lines[number].append,
            )

        calls = [Background(load, number) for number in range(len(paths))]
        for call in calls:
            call.__enter__()
        loaded = [call.result() for call in calls]
        assert len({library.interpreters for library in loaded}) == 1
        assert len(environments(daemon)) == 1
        for number in range(len(paths)):
            assert session.call(f"r{number}::version", X) == "1.0"
    waited = [any(line.startswith("waiting for environment") for line in told) for told in lines]
    assert sorted(waited) == [False, True, True, True]


def test_a_daemon_that_is_killed_while_it_builds_leaves_no_half_environment(
    start_daemon: StartDaemon, write_library: WriteLibrary, wheels: Path, tmp_path: Path
):
    project = write_slow_project(tmp_path / "slowpack", tmp_path)
    path = write_library("slow", reporting("slow", "slowpack"))
    first = start_daemon(workers=1)
    first.expects_errors = True
    requirements = ["--no-index", str(project)]
    connected = first.connect(wait=0)
    with connected as session, Background(session.load, path, requirements=requirements) as c:
        assert wait_for((tmp_path / "building").exists)
        first.signal(signal.SIGKILL)
        first.wait()
        with pytest.raises(oc.DaemonUnavailableError):
            c.result()
    assert wait_for(lambda: not first.processes()), "the installer goes on without its daemon"
    folder = tmp_path / "state" / "environments"
    assert [entry.is_symlink() for entry in folder.iterdir()] == [False]
    (tmp_path / "go").touch()
    second = start_daemon(workers=1)
    with second.connect() as session:
        session.load(path, requirements=requirements)
        assert session.ops.slow.version(X) == "1.0"
        assert len(environments(second)) == 1


def test_abandoned_build_ends_with_the_daemon(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    project = write_slow_project(tmp_path / "slowpack", tmp_path)
    path = write_library("slow", reporting("slow", "slowpack"))
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        call = Background(session.load, path, requirements=["--no-index", str(project)])
        with call:
            assert wait_for((tmp_path / "building").exists)
            assert daemon.stop() == 0
            with pytest.raises(oc.OpdispatchError):
                call.result()
    assert environments(daemon) == []


def test_a_build_may_take_longer_than_the_sessions_timeout(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon(constants={f"{store.__name__}.KEEPALIVE": 0.25})
    project = write_slow_project(tmp_path / "slowpack", tmp_path)
    path = write_library("slow", reporting("slow", "slowpack"))
    requirements = ["--no-index", str(project)]
    with (
        # Enough for the import after the build, when the daemon sends nothing.
        daemon.connect(timeout=8.0) as session,
        grpc.insecure_channel(daemon.address.replace("unix://", "unix:")) as channel,
        Background(session.load, path, requirements=requirements) as call,
    ):
        assert wait_for((tmp_path / "building").exists)
        stub = registry_pb2_grpc.RegistryServiceStub(channel)
        steps = stub.LoadLibraryWithProgress(load_source(path, requirements=requirements).request)
        silent = (step for step in steps if not step.line)
        for _ in range(4 * 9):  # quarters of a second
            next(silent)
        (tmp_path / "go").touch()
        assert call.result().name == "slow"
        assert any(step.reply.library.name == "slow" for step in silent)


def test_a_daemon_that_says_nothing_is_not_waited_for(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--load-timeout", "3", workers=0)
    daemon.expects_errors = True
    path = write_library("hangs", "import time\ntime.sleep(1000)\n")
    with (
        daemon.connect(timeout=1.5) as session,
        pytest.raises(oc.DeadlineExceededError, match=r"sent no message about .* for 1\.5 s"),
    ):
        session.load(path, isolated=True)
    with daemon.connect() as session:
        assert wait_for(lambda: not session.interpreters())
        assert session.libraries() == []


async def test_the_asyncio_session_tells_the_steps_too(
    daemon: RunningDaemon, write_library: WriteLibrary, wheels: Path
):
    steps: list[str] = []
    path = write_library("one", reporting("one", "tinypack"))
    async with oc.aio.connect(daemon.address) as session:
        library = await session.load(
            path, requirements=offline(wheels, "tinypack==1.0"), on_progress=steps.append
        )
        assert library.requirements[-1] == "tinypack==1.0"
        assert await session.ops.one.version(X) == "1.0"
        with pytest.raises(oc.LibraryLoadError, match="cannot be installed"):
            await session.load(path, requirements=offline(wheels, "tinypack==3.0"))
        assert (await session.unload_and_measure("one")).memory_exact
    assert steps[0].startswith("making environment")


def test_a_folder_that_is_no_project_is_named(
    session: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    (tmp_path / "empty").mkdir()
    with pytest.raises(oc.LibraryLoadError, match=r"-e .*empty cannot be installed"):
        session.load(write_library("const", constant(1)), requirements=[f"-e {tmp_path / 'empty'}"])


@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
def test_uv_makes_the_environment_where_it_is_there(
    session: oc.Session, write_library: WriteLibrary, wheels: Path
):
    steps: list[str] = []
    path = write_library("one", reporting("one", "tinypack"))
    session.load(path, requirements=offline(wheels, "tinypack"), on_progress=steps.append)
    assert session.ops.one.version(X) == "2.0"
    assert any("virtual environment" in step for step in steps)
    with pytest.raises(oc.LibraryLoadError, match=r"tinypack==3\.0 cannot be installed: Because"):
        session.load(path, requirements=offline(wheels, "tinypack==3.0"))


@pytest.mark.skipif(shutil.which("uv") is not None, reason="uv would install it")
def test_another_python_needs_uv_or_is_given(session: oc.Session, write_library: WriteLibrary):
    path = write_library("old", script_metadata(python="<3.11") + "\n" + constant(1))
    with pytest.raises(oc.LibraryLoadError, match=r"needs Python <3\.11; the daemon runs"):
        session.load(path)
