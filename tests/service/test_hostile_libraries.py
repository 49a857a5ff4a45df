"""Libraries that fork, leave, or print without end: an error for the culprit, no more."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_interpreters import is_recovered, pid_of

X = np.zeros(2)

# Forks: a child that sleeps, one that returns from the kernel, and, on import, one of each.
FORKS = """\
import os, signal, time
from opdispatch import Library

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def forever():
    while True:
        time.sleep(60)

lib = Library("forks", "DEF")
lib.define("sleeper(Tensor x) -> int")
lib.define("returns(Tensor x) -> int")
lib.define("raises(Tensor x) -> int")
lib.define("wait_for(Tensor x, int pid) -> int")

def raises(x):
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the child")
    return pid

lib.impl("sleeper", lambda x: child(forever), "CPU")
lib.impl("returns", lambda x: os.fork(), "CPU")
lib.impl("raises", raises, "CPU")
lib.impl("wait_for", lambda x, pid: os.waitpid(pid, 0)[1], "CPU")
"""


@pytest.fixture
def forks(shared: oc.Session, write_library: WriteLibrary) -> oc.Session:
    """A session with the library above."""
    shared.load(write_library("forks", FORKS))
    return shared


def descriptors(pid: int, kind: str) -> int:
    """How many descriptors of a kind a process has, such as "socket" or "pipe"."""
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(path).startswith(f"{kind}:")
    return found


def test_a_fork_has_neither_the_session_nor_the_sockets_nor_the_lifeline(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("forks", FORKS), interpreter="worker-1")
    interpreter = pid_of(session, "worker-1")
    child = session.ops.forks.sleeper(X)
    # What it keeps are the event loop's and gRPC's own pairs, which lead nowhere else.
    assert wait_for(lambda: descriptors(child, "socket") <= 4)
    assert descriptors(interpreter, "socket") >= descriptors(child, "socket") + 3
    assert descriptors(child, "pipe") == descriptors(interpreter, "pipe") - 1  # the lifeline
    # A signal to the child does not reach the interpreter.
    os.kill(child, signal.SIGTERM)
    assert session.ops.forks.wait_for(X, child) == signal.SIGTERM
    assert pid_of(session, "worker-1") == interpreter
    # The interpreter's death is seen though a child lives on.
    child = session.ops.forks.sleeper(X)
    os.kill(interpreter, signal.SIGKILL)
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    assert wait_for(lambda: child not in daemon.processes())
    assert session.check_invariants() == []


@pytest.mark.parametrize("operator", ["returns", "raises"])
def test_a_fork_that_comes_back_from_a_kernel_ends_there(forks: oc.Session, operator: str):
    child = forks.call(f"forks::{operator}", X)
    assert child > 0
    assert forks.ops.forks.wait_for(X, child) == 0
    assert forks.call(f"forks::{operator}", X) > child


def test_a_fork_that_comes_back_from_an_import_ends_there(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    text = "import os\npid = os.fork()\n" + constant(1).replace("{value}", "pid")
    before = lent_daemon.processes()
    shared.load(write_library("const", text))
    assert shared.ops.const.get(X) == 1
    shared.unload("const")
    # A child that has ended is a zombie until it is waited for, and has no environment.
    assert wait_for(lambda: lent_daemon.processes() <= before)
    assert shared.check_invariants() == []


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("os._exit(3)", "exited with status 3"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("os.abort()", "was ended by SIGABRT"),
    ],
)
def test_a_library_that_ends_the_process_on_import_is_an_error_that_names_the_interpreter(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary, how: str, end: str
):
    daemon.expects_errors = True
    session.load(write_library("good", constant(7, namespace="good")), interpreter="worker-2")
    said = rf"interpreter worker-1 .* went away while importing leaves\.py: its process {end}"
    with pytest.raises(oc.InterpreterDiedError, match=said):
        session.load(write_library("leaves", f"import os\n{how}\n"), interpreter="worker-1")
    assert [library.name for library in session.libraries()] == ["good"]
    assert session.ops.good.get(X) == 7
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))


def test_a_kernel_that_leaves_the_process_fails_its_call_alone(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    text = (
        "import os, sys\nfrom opdispatch import Library\nlib = Library('leaves', 'DEF')\n"
        "lib.define('politely(Tensor x) -> ()')\nlib.define('at_once(Tensor x) -> ()')\n"
        "lib.impl('politely', lambda x: sys.exit(3), 'CPU')\n"
        "lib.impl('at_once', lambda x: os._exit(3), 'CPU')\n"
    )
    session.load(write_library("leaves", text), interpreter="worker-1")
    session.load(write_library("const", constant(1)), interpreter="worker-2")
    with pytest.raises(oc.KernelError, match="raised SystemExit: 3"):
        session.ops.leaves.politely(X)
    assert is_recovered(session, {"worker-1": 0, "worker-2": 0})
    with pytest.raises(oc.InterpreterDiedError, match=r"worker-1 .* running leaves::at_once"):
        session.ops.leaves.at_once(X)
    assert session.ops.const.get(X) == 1
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    messages = [record["message"] for record in daemon.log_records()]
    assert any("worker-1 exited with status 3" in message for message in messages)


def test_a_kernel_that_crashes_is_shown_in_the_last_output(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    text = (
        "import ctypes\nfrom opdispatch import Library\nlib = Library('crash', 'DEF')\n"
        "lib.define('now(Tensor x) -> ()')\n"
        "def read_nothing(x):\n    ctypes.string_at(0)\n"
        "lib.impl('now', read_nothing, 'CPU')\n"
    )
    session.load(write_library("crash", text), interpreter="worker-1")
    with pytest.raises(oc.InterpreterDiedError, match="was ended by SIGSEGV"):
        session.ops.crash.now(X)
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    [said] = [r["message"] for r in daemon.log_records() if "its last output" in r["message"]]
    assert "Fatal Python error: Segmentation fault" in said
    assert 'File "crash.py", line 6 in read_nothing' in said


def test_a_library_that_floods_its_output_fills_neither_the_log_nor_the_memory(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    text = (
        "import os\nfrom opdispatch import Library\nlib = Library('flood', 'DEF')\n"
        "lib.define('print(Tensor x, int lines) -> int')\n"
        "def flood(x, lines):\n"
        "    block = b'water water water\\n' * 1000\n"
        "    return sum(os.write(1, block) for _ in range(lines // 1000))\n"
        "lib.impl('print', flood, 'CPU')\n"
    )
    with daemon.connect() as session:
        session.load(write_library("flood", text))
        session.ops.flood.print(X, 1000)
        before = memory_of(daemon.process.pid)
        assert session.ops.flood.print(X, 1_000_000) == 18_000_000
        assert session.interpreters()[0].restarts == 0
        assert session.interpreters()[0].last_lines == ("water water water",) * 20
        assert memory_of(daemon.process.pid) - before < 32 * 1024
    assert daemon.stop() == 0
    assert len(daemon.log()) < 1_000_000
    reports = [r["message"] for r in daemon.log_records() if "left out" in r["message"]]
    left_out = sum(int(message.split(":")[1].split()[0]) for message in reports)
    logged = daemon.log().count("water water water")
    assert logged + left_out == 1_001_000
    assert "interpreter worker-1 prints too much" in reports[0]


def memory_of(pid: int) -> int:
    """In KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("the process is gone")


VANDAL = """\
import gc
from opdispatch import Library
from opdispatch.dispatch.registration import RegistrationHandle

lib = Library("vandal", "DEF")
lib.define("undo(str namespace) -> ()")

def undo(namespace):
    for found in gc.get_objects():
        if isinstance(found, RegistrationHandle) and found.registration.name is not None:
            if found.registration.name.namespace == namespace:
                found.close()

lib.impl("undo", undo, "CompositeImplicitAutograd")
"""


def test_check_invariants_finds_registrations_undone_by_a_library(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    const = shared.load(write_library("const", constant(1)), interpreter="worker-2")
    shared.load(write_library("vandal", VANDAL), interpreter="worker-1")
    assert shared.check_invariants() == []
    shared.ops.vandal.undo("const")
    assert shared.check_invariants() == [f"const v{const.version} is not in force in worker-1"]
    shared.load(write_library("const", constant(2)))
    assert shared.check_invariants() == []
