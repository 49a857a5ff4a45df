"""Several interpreters load the same library at once: every row of the design's table."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)
INTERPRETERS = 8
ROUNDS = int(os.environ.get("OPDISPATCH_RACE_ROUNDS", "25"))
NAMES = [f"worker-{number + 1}" for number in range(INTERPRETERS)]


def gated(folder: Path, text: str) -> str:
    """A library whose import says where it runs, and waits until the test lets it go on."""
    return f"""\
import os, time
place = os.path.join({str(folder)!r}, "")
open(place + f"importing-{{os.getpid()}}", "w").close()
while not os.path.exists(place + "open") and not os.path.exists(place + f"open-{{os.getpid()}}"):
    time.sleep(0.005)
if os.path.exists(place + f"fail-{{os.getpid()}}"):
    raise ValueError("not here")
{text}"""


def pids(session: oc.Session) -> dict[str, int]:
    return {interpreter.name: interpreter.pid for interpreter in session.interpreters()}


def importing(folder: Path, *numbers: int) -> Callable[[], bool]:
    return lambda: all((folder / f"importing-{number}").exists() for number in numbers)


def awaited(session: oc.Session) -> str:
    """Return who is expected to register something: those that are importing a library now."""
    with pytest.raises(oc.WaitTimeoutError) as error:
        session.wait_for_def("missing::registers_this", timeout=0)
    return str(error.value)


def race(functions: list[Callable[[], Any]]) -> list[Any]:
    """Start all calls at the same moment and return each result."""
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], Any]) -> Any:
        start.wait(LONGEST_WAIT)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon(tmp_path_factory.mktemp("eight"), workers=INTERPRETERS)
    try:
        daemon.wait_until_ready()
        yield daemon
    finally:
        daemon.clean_up()


def test_of_eight_racing_interpreters_one_is_the_primary_and_seven_join_it(eight: RunningDaemon):
    with eight.connect() as session:
        path = eight.folder / "const.py"
        for number in range(ROUNDS):
            path.write_text(constant(number))
            loads = race([lambda n=n: session.load(path, interpreter=n) for n in NAMES])
            assert Counter(load.role for load in loads) == {"primary": 1, "replica": 7}, number
            assert {load.version for load in loads} == {number + 1}
            [primary] = [n for n, load in zip(NAMES, loads, strict=True) if load.role == "primary"]
            [library] = session.libraries()
            assert library.interpreters[0] == primary
            assert sorted(library.interpreters) == NAMES
            assert library.interpreters_wanted == INTERPRETERS
            assert {session.ops.const.get(X) for _ in range(16)} == {number}
            assert session.check_invariants() == []
            if number % 5 == 4:
                session.unload("const")
                assert session.operators() == []
        for library in session.libraries():
            session.unload(library.name)


def test_waiters_that_name_no_interpreter_get_what_the_first_one_loads(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    path = write_library("const", gated(tmp_path, constant(1)))
    with Background(shared.load, path, interpreter="worker-1") as first:
        assert wait_for(importing(tmp_path, pids(shared)["worker-1"]))
        with Background(shared.load, path) as second, Background(shared.load, path) as third:
            (tmp_path / "open").touch()
            assert first.result().role == "primary"
            version = first.result().version
            for waiter in (second, third):
                load = waiter.result()
                assert (load.already_loaded, load.role, load.version) == (True, "", version)
                assert load.interpreters == ("worker-1",)


def test_a_later_load_into_another_interpreter_joins_without_a_publication(
    shared: oc.Session, write_library: WriteLibrary
):
    path = write_library("const", constant(1))
    first = shared.load(path, interpreter="worker-1")
    epoch = shared.refresh_server_info().epoch
    second = shared.load(path, interpreter="worker-2")
    assert (second.role, second.version) == ("replica", first.version)
    assert second.interpreters == ("worker-1", "worker-2")
    assert shared.load(path, interpreter="worker-2").already_loaded
    assert shared.refresh_server_info().epoch == epoch
    assert shared.ops.const.get(X) == 1


def test_a_replica_that_registers_something_else_is_refused(
    shared: oc.Session, write_library: WriteLibrary
):
    differs = (
        "import os\nfrom opdispatch import Library\nlib = Library('const', 'DEF')\n"
        "lib.define('get(Tensor x) -> int')\nlib.impl('get', lambda x: 1, 'CPU')\n"
        f"if os.getpid() == {pids(shared)['worker-2']}:\n"
        "    lib.define('more(Tensor x) -> int')\n"
    )
    path = write_library("const", differs)
    version = shared.load(path, interpreter="worker-1").version
    with pytest.raises(oc.LibraryLoadError) as caught:
        shared.load(path, interpreter="worker-2")
    refused = f"worker-2 cannot hold a replica of const v{version}: it also registers"
    assert refused in str(caught.value)
    assert "const::more(Tensor x) -> int (at const.py:7)" in str(caught.value)
    [library] = shared.libraries()
    assert library.interpreters == ("worker-1",)
    assert shared.ops.const.get(X) == 1
    assert shared.check_invariants() == []
    assert [operator.name for operator in shared.operators()] == ["const::get"]


def test_the_next_one_takes_the_place_of_a_primary_that_fails_to_load(
    shared: oc.Session, write_library: WriteLibrary, tmp_path: Path
):
    path = write_library("const", gated(tmp_path, constant(3)))
    ids = pids(shared)
    with (
        Background(shared.load, path, interpreter="worker-1") as first,
        Background(shared.load, path, interpreter="worker-2") as second,
    ):
        assert wait_for(importing(tmp_path, *ids.values()))
        (tmp_path / f"fail-{ids['worker-1']}").touch()
        (tmp_path / f"open-{ids['worker-1']}").touch()
        with pytest.raises(oc.LibraryLoadError, match="not here"):
            first.result()
        assert shared.libraries() == []
        (tmp_path / "open").touch()
        assert second.result().role == "primary"
    assert shared.ops.const.get(X) == 3


@pytest.mark.parametrize("waiter", ["worker-2", None])
def test_the_next_one_takes_the_place_of_a_primary_that_dies_while_it_loads(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, waiter: str | None
):
    daemon.expects_errors = True
    path = write_library("const", gated(daemon.folder, constant(3)))
    ids = pids(session)
    with (
        Background(session.load, path, interpreter="worker-1") as first,
    ):
        assert wait_for(importing(daemon.folder, ids["worker-1"]))
        with Background(session.load, path, interpreter=waiter) as second:
            os.kill(ids["worker-1"], signal.SIGKILL)
            with pytest.raises(oc.InterpreterDiedError, match="worker-1"):
                first.result()
            (daemon.folder / "open").touch()
            assert second.result().role == "primary"
    assert session.ops.const.get(X) == 3


def test_other_content_of_the_same_name_waits_for_its_turn_and_becomes_a_version(
    shared: oc.Session, tmp_path: Path
):
    paths = []
    for number in range(4):
        (tmp_path / str(number)).mkdir()
        paths.append(tmp_path / str(number) / "const.py")
        paths[-1].write_text(gated(tmp_path, constant(number)))
    with ExitStack() as stack:
        stack.callback((tmp_path / "open").touch)
        first = Background(shared.load, paths[0], interpreter="worker-1")
        stack.enter_context(first)
        assert wait_for(importing(tmp_path, pids(shared)["worker-1"]))
        others = [
            stack.enter_context(Background(shared.load, path, interpreter="worker-2"))
            for path in paths[1:]
        ]
        assert shared.libraries() == []
        (tmp_path / "open").touch()
        version = first.result().version
        versions = {load.result().version: number for number, load in enumerate(others, 1)}
    assert sorted(versions) == [version + 1, version + 2, version + 3]
    assert shared.ops.const.get(X) == versions[version + 3]


def test_an_interpreter_that_dies_before_its_turn_is_no_replica(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    """The first one's publication takes a moment, since a third one does not listen."""
    daemon = start_daemon("--heartbeat", "60", workers=3)
    daemon.expects_errors = True
    path = write_library("const", gated(tmp_path, constant(1)))
    with daemon.connect() as session, daemon.connect() as other:
        pid = pids(session)
        with (
            Background(session.load, path, interpreter="worker-1") as first,
            Background(other.load, path, interpreter="worker-2") as second,
        ):
            assert wait_for(importing(tmp_path, pid["worker-1"], pid["worker-2"]))
            os.kill(pid["worker-3"], signal.SIGSTOP)
            (tmp_path / "open").touch()
            assert wait_for(lambda: "being imported" not in awaited(session))
            os.kill(pid["worker-2"], signal.SIGKILL)
            struck_off = f"interpreter worker-2 (pid {pid['worker-2']}) went away"
            assert wait_for(lambda: struck_off in daemon.log())
            os.kill(pid["worker-3"], signal.SIGCONT)
            with pytest.raises(oc.InterpreterDiedError, match="worker-2"):
                second.result()
            first.result()
        assert session.libraries()[0].interpreters == ("worker-1",)
        assert session.check_invariants() == []
