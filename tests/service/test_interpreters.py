"""Interpreters die, come back, join and leave."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.command_line import run_cli, running_cli
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, IMAGE, constant
from tests.service.running_daemon import MARK, Background, RunningDaemon, wait_for
from tests.service.warm_daemon import ForkedProcess
from tests.waits import LONGEST_WAIT

X = np.zeros(2)

DIES = """\
import os, signal
from opdispatch import Library

lib = Library("dies", "DEF")
lib.define("die(Tensor(a!) x) -> ()")
lib.impl("die", lambda x: os.kill(os.getpid(), signal.SIGKILL), "CPU")
"""


@contextmanager
def worker(daemon: RunningDaemon, *options: str) -> Iterator[ForkedProcess]:
    """An interpreter that a user starts."""
    words = ("worker", "--daemon", daemon.address, "--cache", str(daemon.folder / "cache"))
    variables = {"XDG_RUNTIME_DIR": str(daemon.runtime_folder), MARK: daemon.mark}
    with running_cli(*words, *options, **variables) as process:
        yield process


def pid_of(session: oc.Session, name: str) -> int:
    return next(i.pid for i in session.interpreters() if i.name == name)


def is_recovered(session: oc.Session, restarts: dict[str, int]) -> bool:
    return {i.name: i.restarts for i in session.interpreters()} == restarts and all(
        library.active for library in session.libraries()
    )


def test_an_interpreter_that_dies_in_a_call_fails_that_call_and_is_replaced(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("dies", DIES), interpreter="worker-1")
    session.load(write_library("image", IMAGE), interpreter="worker-1")
    session.load(write_library("const", constant(5)), interpreter="worker-2")
    with pytest.raises(oc.InterpreterDiedError) as caught:
        session.ops.dies.die(X)
    assert caught.value.facts["interpreter"] == "worker-1"
    assert caught.value.facts["operator"] == "dies::die"
    assert "worker-1" in str(caught.value)
    assert "dies::die" in str(caught.value)
    assert session.ops.const.get(X) == 5
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    # Loaded again, from what was uploaded, under the same version.
    np.testing.assert_array_equal(session.ops.image.pipeline(X), 1 - X * 3)
    assert {library.version for library in session.libraries()} == {1}
    assert session.check_invariants() == []
    log = [record["message"] for record in daemon.log_records()]
    assert any("worker-1 was ended by SIGKILL" in message for message in log)


def test_libraries_move_to_a_live_interpreter_at_once(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(5)), interpreter="worker-1")
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    moved = ("worker-2",)
    assert wait_for(lambda: session.libraries()[0].interpreters == moved)
    assert session.ops.const.get(X) == 5


def test_mirrors_of_a_dead_interpreters_operators_are_renewed(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    outer = (
        "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
        "lib.define('get(Tensor x) -> int')\n"
        "lib.impl('get', lambda x: ops.const.get(x) + 1, 'CPU')\n"
    )
    session.load(write_library("const", constant(5)), interpreter="worker-1")
    session.load(write_library("outer", outer), interpreter="worker-2")
    assert session.ops.outer.get(X) == 6
    for name, restarts in (
        ("worker-1", {"worker-1": 1, "worker-2": 0}),
        ("worker-2", {"worker-1": 1, "worker-2": 1}),
    ):
        os.kill(pid_of(session, name), signal.SIGKILL)
        assert wait_for(lambda expected=restarts: is_recovered(session, expected))
        assert session.ops.outer.get(X) == 6
        assert session.check_invariants() == []


def test_calls_in_flight_elsewhere_are_not_disturbed(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("gate", GATE), interpreter="worker-1")
    with Background(session.ops.gate.wait, X, str(daemon.folder), 4) as call:
        assert wait_for((daemon.folder / "entered-4").exists)
        os.kill(pid_of(session, "worker-2"), signal.SIGKILL)
        assert wait_for(lambda: is_recovered(session, {"worker-1": 0, "worker-2": 1}))
        (daemon.folder / "open").touch()
        assert call.result() == 4


def test_a_load_that_kills_its_interpreter_is_an_error_and_leaves_nothing(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    with pytest.raises(oc.InterpreterDiedError, match="worker-1"):
        session.load(write_library("deadly", text), interpreter="worker-1")
    assert session.libraries() == []
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))


def test_the_version_below_is_loaded_again_if_its_interpreter_has_died(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("const", constant(1)), interpreter="worker-1")
    session.load(write_library("const", constant(2)), interpreter="worker-2")
    os.kill(pid_of(session, "worker-1"), signal.SIGKILL)
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    assert session.ops.const.get(X) == 2
    active = session.unload("const", version=2)
    assert active is not None
    assert active.version == 1
    assert session.ops.const.get(X) == 1
    assert session.check_invariants() == []


def test_subprocesses_of_a_kernel_end_with_its_interpreter(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    text = (
        "import subprocess\nfrom opdispatch import Library\nlib = Library('forks', 'DEF')\n"
        "lib.define('start(Tensor x) -> int')\n"
        "lib.impl('start', lambda x: subprocess.Popen(['sleep', '1000']).pid, 'CPU')\n"
    )
    session.load(write_library("forks", text))
    pid = session.ops.forks.start(X)
    # A program's environment can be read a moment after it has been started.
    assert wait_for(lambda: pid in daemon.processes())
    assert daemon.stop() == 0
    # It has been killed, and may take a moment to be gone where the cores are busy.
    assert wait_for(lambda: not daemon.processes())


def test_a_user_can_add_an_interpreter_and_take_it_away(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        session.load(write_library("image", IMAGE))
        with worker(daemon, "--name", "extra") as process:
            assert wait_for(lambda: len(session.interpreters()) == 2)
            extra = next(i for i in session.interpreters() if i.name == "extra")
            assert (extra.pid, extra.supervised, extra.state) == (process.pid, False, "ready")
            outer = (
                "from opdispatch import Library, ops\nlib = Library('outer', 'DEF')\n"
                "lib.define('invert(Tensor x) -> Tensor')\n"
                "lib.impl('invert', lambda x: ops.image.invert(x), 'CPU')\n"
            )
            assert session.load(write_library("outer", outer)).interpreters == ("extra",)
            np.testing.assert_array_equal(session.ops.outer.invert(X), 1 - X)
            process.terminate()
            assert process.wait(LONGEST_WAIT) == 0
            worker_1 = ("worker-1",)
            assert wait_for(lambda: session.libraries()[1].interpreters == worker_1)
            np.testing.assert_array_equal(session.ops.outer.invert(X), 1 - X)
        assert session.check_invariants() == []


def test_an_added_interpreter_ends_with_its_daemon(start_daemon: StartDaemon):
    daemon = start_daemon(workers=0, listen=["127.0.0.1:0"])
    with daemon.connect() as session, worker(daemon) as process:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        assert session.interpreters()[0].name == "worker-1"
        assert daemon.stop() == 0
        _, errors = process.communicate(timeout=LONGEST_WAIT)
        assert process.returncode == 1, errors.decode()
        ended = f"opdispatch: the daemon at {daemon.address} has ended the session"
        assert errors.decode() == f"{ended}: the daemon is stopping\n"


def test_many_added_interpreters_all_end_with_a_daemon_that_they_had_to_look_for(
    start_daemon: StartDaemon,
):
    daemon = start_daemon("--heartbeat", "0.1", workers=0)
    with daemon.connect() as session, ExitStack() as stack:
        workers = [stack.enter_context(worker(daemon, "--name", f"w{n}")) for n in range(3)]
        assert wait_for(lambda: len(session.interpreters()) == 3)
        # Given up, and come back: it has not been looking for its daemon since.
        workers[0].send_signal(signal.SIGSTOP)
        assert wait_for(lambda: len(session.interpreters()) == 2)
        workers[0].send_signal(signal.SIGCONT)
        assert wait_for(lambda: len(session.interpreters()) == 3)
        # One that cannot listen while the daemon stops finds the goodbye later.
        workers[1].send_signal(signal.SIGSTOP)
        try:
            assert daemon.stop() == 0
        finally:
            workers[1].send_signal(signal.SIGCONT)
        for process in (workers[0], workers[2]):
            _, errors = process.communicate(timeout=LONGEST_WAIT)
            assert process.returncode == 1, errors.decode()
            last = errors.decode().splitlines()[-1]
            assert last.endswith("has ended the session: the daemon is stopping")


def test_an_import_that_hangs_in_an_added_interpreter_ends_that(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--load-timeout", "0.5", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session, worker(daemon, "--name", "extra") as process:
        assert wait_for(lambda: len(session.interpreters()) == 2)
        path = write_library("slow", "import time\ntime.sleep(1000)\n")
        with pytest.raises(oc.DeadlineExceededError, match="extra"):
            session.load(path, interpreter="extra")
        assert process.wait(LONGEST_WAIT) == 1
        assert wait_for(lambda: len(session.interpreters()) == 1)
        assert session.load(write_library("const", constant(1))).interpreters == ("worker-1",)


def test_names_of_interpreters_are_unique(lent_daemon: RunningDaemon):
    for name in ("worker-1", "worker-2"):
        with worker(lent_daemon, "--name", name) as process:
            _, errors = process.communicate(timeout=LONGEST_WAIT)
            assert f"keeps the name '{name}' for an interpreter of its own" in errors.decode()
            assert process.returncode == 1, errors.decode()


def test_the_second_interpreter_of_a_name_is_refused_and_the_first_is_unharmed(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    with worker(lent_daemon, "--name", "extra") as first:
        assert wait_for(lambda: len(shared.interpreters()) == 3)
        shared.load(write_library("const", constant(5)), interpreter="extra")
        with worker(lent_daemon, "--name", "extra") as second:
            _, errors = second.communicate(timeout=LONGEST_WAIT)
            assert second.returncode == 1, errors.decode()
            assert errors.decode() == (
                f"opdispatch: another interpreter is named 'extra' (pid {first.pid}) "
                "(choose another name with --name)\n"
            )
        assert pid_of(shared, "extra") == first.pid
        assert shared.ops.const.get(X) == 5


def test_an_added_interpreter_needs_a_daemon(daemon: RunningDaemon):
    with daemon.connect():
        pass
    assert daemon.stop() == 0
    with worker(daemon) as process:
        _, errors = process.communicate(timeout=LONGEST_WAIT)
        assert process.returncode == 1
        assert b"no daemon answers at" in errors
        assert b"opdispatch serve" in errors


def test_an_added_interpreter_must_be_within_reach():
    for address in ("example.org:1", "nonsense"):
        done = run_cli("worker", "--daemon", address)
        assert done.returncode == 2
        assert done.stderr.startswith("opdispatch: ")
        assert done.stderr.count("\n") == 1


def test_joining_interpreter_gets_what_is_published_meanwhile(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """Which it hears of only once: none of the libraries is published again."""
    daemon = start_daemon(workers=4)
    daemon.expects_errors = True
    others = ("worker-2", "worker-3", "worker-4")
    stopped = threading.Event()

    def load_on_and_on() -> None:
        with daemon.connect() as session:
            for number in itertools.count():
                if stopped.is_set():
                    return
                library = write_library(f"c{number}", constant(number, namespace=f"c{number}"))
                session.load(library, interpreter="worker-1")

    with daemon.connect() as session:
        with Background(load_on_and_on) as loading:
            try:
                for restarts in (1, 2):
                    for name in others:
                        os.kill(pid_of(session, name), signal.SIGKILL)
                    expected = {"worker-1": 0, **dict.fromkeys(others, restarts)}
                    assert wait_for(
                        lambda expected=expected: (
                            {
                                i.name: i.restarts
                                for i in session.interpreters()
                                if i.state == "ready"
                            }
                            == expected
                        ),
                    )
            finally:
                stopped.set()
        loading.result()
        assert session.check_invariants() == []
