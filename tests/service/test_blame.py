"""One bad library brings down no other: who is blamed, who runs again, and where."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import GATE, constant
from tests.service.running_daemon import Background, RunningDaemon, wait_for

X = np.zeros(2)

BAD = """
import ctypes, os, re, time
from opdispatch import Library

max_concurrency = 8
lib = Library("bad", "DEF")
kept = []

def count(x, path):
    with open(path, "a") as file:
        file.write("x")

def crash(x, path):
    count(x, path)
    ctypes.string_at(0)

def leave(x, path):
    count(x, path)
    os._exit(3)

def kill(x, path):
    count(x, path)
    os.kill(os.getpid(), 9)

def lock(x, path):
    count(x, path)
    re.match(r"(a+)+$", "a" * 60 + "b")

def hold(x, path):
    pipe = os.open(os.path.join(os.path.dirname(path), "release"), os.O_RDWR)
    count(x, path)
    # The lock is kept until something is written to the pipe.
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    os.close(pipe)

def leak(x, path):
    count(x, path)
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return

def poison(x, path):
    count(x, path)
    import numpy
    numpy.empty = None

def answer(x, path):
    count(x, path)
    return [1] * 20_000_000

def write(x, path):
    count(x, path)
    return "x" * 200_000_000

for function, kind in ((answer, "int[]"), (write, "str")):
    name = function.__name__
    lib.define(f"{name}(Tensor x, str path) -> {kind}")
    lib.impl(name, function, "CPU")
for function in (crash, leave, kill, lock, hold, leak, poison):
    name = function.__name__
    lib.define(f"{name}(Tensor x, str path) -> ()")
    lib.impl(name, function, "CPU")
lib.define("ok(Tensor x) -> int")
lib.impl("ok", lambda x: 1, "CPU")
"""

GOOD = """
import os
import numpy as np
from opdispatch import Library

open(os.devnull).close()
lib = Library("good", "DEF")
lib.define("add(Tensor x) -> Tensor")

def add(x):
    y = np.empty(x.shape)
    y[:] = x + 1
    return y

lib.impl("add", add, "CPU")
"""


class Bad:
    """A daemon with a bad library and a good one, and a count of what the bad one has run."""

    def __init__(self, daemon: RunningDaemon, session: oc.Session, write: WriteLibrary) -> None:
        daemon.expects_errors = True
        self.daemon = daemon
        self.session = session
        self._numbers = itertools.count(1)
        os.mkfifo(daemon.folder / "release")
        session.load(write("bad", BAD))
        session.load(write("good", GOOD))

    def call(self, operator: str) -> tuple[object, int]:
        """The error of a call, or what it returned; and how often it has run."""
        path = self.daemon.folder / f"ran-{next(self._numbers)}"
        try:
            result: object = getattr(self.session.ops.bad, operator)(X, str(path))
        except oc.OpdispatchError as error:
            result = error
        return result, len(path.read_text()) if path.exists() else 0

    def release(self) -> None:
        """Let the kernel ``hold`` give the interpreter lock back."""
        with (self.daemon.folder / "release").open("r+b", buffering=0) as pipe:
            pipe.write(b"x")

    def good_is_served(self) -> bool:
        return bool((self.session.ops.good.add(X) == 1).all())

    def restarts(self) -> int:
        return sum(each.restarts for each in self.session.interpreters())

    def log(self) -> list[str]:
        return [record["message"] for record in self.daemon.log_records()]


@pytest.fixture
def bad(daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary) -> Bad:
    return Bad(daemon, session, write_library)


@pytest.mark.parametrize("operator", ["crash", "leave"])
def test_crashes_are_the_kernels_and_hurt_no_other_call(bad: Bad, operator: str):
    outcomes = []
    for _ in range(6):
        outcomes.append(bad.call(operator))
        assert bad.good_is_served()
    errors, runs = zip(*outcomes, strict=True)
    assert runs[:2] == (1, 1)  # never repeated
    assert [type(each) for each in errors[:2]] == [oc.InterpreterDiedError] * 2
    refused = [each for each in errors[2:] if isinstance(each, oc.CircuitOpenError)]
    assert refused
    assert sum(runs) + len(refused) == 6
    assert refused[0].facts["operator"] == f"bad::{operator}"
    assert 0 < float(refused[0].facts["retry_after"]) <= 60
    # Operators of its that do no harm are served all along, and so is its health seen.
    assert wait_for(lambda: bad.session.ops.bad.ok(X) == 1)
    listed = {each.name: each for each in bad.session.libraries()}
    assert f"the kernel of bad::{operator}" in listed["bad"].trouble
    assert (listed["good"].state, listed["good"].trouble) == ("active", "")
    assert {each.state for each in bad.session.interpreters()} == {"apart", "ready"}
    named = [line for line in bad.log() if f"because of the kernel of bad::{operator}" in line]
    assert len(named) == sum(runs)
    assert bad.session.check_invariants() == []


def test_circuit_closes_by_itself_once_a_probe_has_gone_well(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    flag = daemon.folder / "deadly"
    text = (
        "import os\nfrom opdispatch import Library\nlib = Library('moody', 'DEF')\n"
        "lib.define('f(Tensor x) -> int')\n"
        f"lib.impl('f', lambda x: os._exit(1) if os.path.exists({str(flag)!r}) else 5, 'CPU')\n"
    )
    with daemon.connect() as session:
        session.load(write_library("moody", text))
        flag.touch()
        for _ in range(2):
            with pytest.raises(oc.InterpreterDiedError):
                session.ops.moody.f(X)
        with pytest.raises(oc.CircuitOpenError):
            session.ops.moody.f(X)
        flag.unlink()

        def is_served() -> bool:
            try:
                return session.ops.moody.f(X) == 5
            except oc.CircuitOpenError:
                return False

        assert wait_for(is_served)
        assert all(is_served() for _ in range(5))


def test_kernel_that_may_have_been_killed_from_outside_runs_once_more_and_alone(bad: Bad):
    error, runs = bad.call("kill")
    assert isinstance(error, oc.InterpreterDiedError)
    assert runs == 2
    assert bad.good_is_served()
    assert wait_for(lambda: bad.restarts() == 2)
    assert not [each for each in bad.session.interpreters() if each.state == "quarantined"]
    # Its second run was in an interpreter that held nothing else.
    assert not [line for line in bad.log() if line.startswith("good v1: ")]


def test_kernel_that_keeps_the_lock_costs_one_interpreter_and_is_named(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--lock-timeout", "2.5", "--heartbeat", "0.2")
    with daemon.connect() as session, daemon.connect(direct=False) as other:
        bad = Bad(daemon, session, write_library)
        session.load(write_library("good2", constant(2, namespace="good2")))
        with Background(bad.call, "lock") as call:
            assert wait_for(lambda: "busy" in {i.state for i in session.interpreters()})
            [busy] = [each for each in session.interpreters() if each.state == "busy"]
            assert busy.trouble == "the kernel of bad::lock keeps the interpreter lock"
            # While it is busy, what it holds is served elsewhere.
            assert other.ops.good2.get(X) == 2
            assert (other.ops.good.add(X) == 1).all()
            error, runs = call.result()
        assert isinstance(error, oc.KernelTimeoutError)
        assert "the kernel of bad::lock kept the interpreter lock for longer than 2.5 s" in str(
            error
        )
        assert runs == 1
        assert wait_for(lambda: bad.restarts() == 1)
        assert any("because of the kernel of bad::lock" in line for line in bad.log())
        assert bad.good_is_served()


def test_direct_calls_that_wait_for_a_kept_lock_run_elsewhere(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--lock-timeout", "60")
    with daemon.connect() as session, daemon.connect() as caller:
        bad = Bad(daemon, session, write_library)
        beside = write_library("beside", constant(3, namespace="beside"))
        holder = {each.name: each.interpreters for each in session.libraries()}["bad"]
        session.load(beside, interpreter=holder[0])
        for _ in range(3):
            assert caller.ops.beside.get(X) == 3  # it knows the way
        with Background(bad.call, "hold") as held:
            assert wait_for(lambda: (daemon.folder / "ran-1").exists())
            # It is under way before anybody knows that the interpreter is busy.
            assert caller.ops.beside.get(X) == 3
            assert wait_for(
                lambda: (holder[0], "busy") in {(i.name, i.state) for i in session.interpreters()}
            )
            bad.release()
            assert held.result() == (None, 1)
        assert bad.restarts() == 0


@pytest.mark.parametrize("operator", ["answer", "write"])
def test_result_that_is_too_long_is_refused_before_it_is_packed(bad: Bad, operator: str):
    error, runs = bad.call(operator)
    assert isinstance(error, oc.MessageTooLargeError)
    assert runs == 1
    assert "the result of the call has" in str(error)
    assert bad.restarts() == 0
    assert bad.good_is_served()


def test_kernel_that_keeps_the_lock_for_some_seconds_is_only_busy(bad: Bad):
    with Background(bad.call, "hold") as call:
        assert wait_for(lambda: "busy" in {i.state for i in bad.session.interpreters()})
        bad.release()
        assert call.result() == (None, 1)
    assert wait_for(lambda: {i.state for i in bad.session.interpreters()} == {"ready"})
    assert bad.restarts() == 0
    assert bad.good_is_served()


def test_lock_is_watched_while_something_is_imported(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--lock-timeout", "1", "--heartbeat", "0.1", workers=1)
    gate = daemon.folder / "gate"
    slow = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    with daemon.connect() as session, daemon.connect(timeout=60) as loader:
        bad = Bad(daemon, session, write_library)
        path = write_library("slow", slow + constant(1, namespace="slow"))
        with Background(loader.load, path) as load:
            assert wait_for(lambda: "loading" in {i.state for i in session.interpreters()})
            error, runs = bad.call("lock")
            assert isinstance(error, oc.KernelTimeoutError)
            assert runs == 1
            gate.touch()
            with pytest.raises(oc.InterpreterDiedError) as caught:
                load.result()
        assert "suspect" not in caught.value.facts
        assert session.load(path).active
        assert not session.libraries()[-1].trouble


@pytest.mark.parametrize(
    ("operator", "problem"),
    [
        ("leak", "it cannot open a file: Too many open files"),
        ("poison", "something has taken numpy.empty away"),
    ],
)
def test_interpreter_that_can_run_kernels_no_more_is_replaced(
    start_daemon: StartDaemon, write_library: WriteLibrary, operator: str, problem: str
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        bad = Bad(daemon, session, write_library)
        assert bad.good_is_served()
        assert bad.call(operator) == (None, 1)
        # No call of the other library meanwhile: one that runs at that moment is under suspicion.
        assert wait_for(lambda: bad.restarts() == 1)
        assert bad.good_is_served()
        listed = {each.name: each for each in session.libraries()}
        assert listed["good"].state == "active"
        assert (listed["good"].trouble, listed["good"].error) == ("", "")
        assert f"the kernel of bad::{operator}" in listed["bad"].trouble
        assert any(f"worker-1 is replaced: {problem}" in line for line in bad.log())


def test_death_during_an_import_is_not_the_imports_fault(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    """A library is not given up since others bring interpreters down while it is imported."""
    daemon = start_daemon(workers=1)
    hold, begun = daemon.folder / "hold", daemon.folder / "begun"
    slow = (
        f"import os, time\nopen({str(begun)!r}, 'a').write('x')\n"
        f"while os.path.exists({str(hold)!r}):\n    time.sleep(0.01)\n"
    )
    with daemon.connect() as session:
        bad = Bad(daemon, session, write_library)
        session.load(write_library("const", slow + constant(5)))
        hold.touch()
        os.kill(session.interpreters()[0].pid, signal.SIGKILL)
        assert wait_for(lambda: len(begun.read_text()) == 2)
        assert bad.call("leave")[1] == 1  # beside the import
        hold.unlink()
        assert session.ops.const.get(X) == 5
        const = next(each for each in session.libraries() if each.name == "const")
        assert (const.state, const.trouble, const.error) == ("active", "", "")


def test_innocent_call_that_runs_beside_a_crash_runs_again(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        bad = Bad(daemon, session, write_library)
        session.load(write_library("gate", GATE))
        with Background(session.ops.gate.wait, X, str(daemon.folder), 3) as innocent:
            assert wait_for((daemon.folder / "entered-3").exists)
            bad.call("leave")
            (daemon.folder / "open").touch()
            assert innocent.result() == 3
