"""Ends of clients, interpreters and daemons, in any way, and of their remote values."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_server.call_context import KERNEL_THREADS
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.remote import MATH, MORE, kept, nothing_is_kept, stores
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_interpreters import is_recovered, pid_of, worker
from tests.waits import LONGEST_WAIT

CLIENT = """
import sys
import numpy as np
import opdispatch_client as oc

session = oc.connect(sys.argv[1], lane=sys.argv[2])
values = [session.put(np.zeros(1000)) for _ in range(10)]
values.append(session.call("math::add", values[0], values[1], remote=True))
print("ready", flush=True)
sys.stdin.read()
"""
# Values of a client that says nothing for so long are let go of, in seconds.
IMPATIENT = {
    "opdispatch_server.daemon.servicers.hold_values.INTERVAL": 0.5,
    "opdispatch_server.daemon.servicers.hold_values.SILENCE": 2.0,
}


# An interpreter as on another machine: it has no local lane, only gRPC.
FAR = """
import asyncio, sys
from opdispatch_server.worker.interpreter import Interpreter
from opdispatch_server.worker.interpreter_settings import InterpreterSettings

settings = InterpreterSettings(sys.argv[1], sys.argv[2], 1 << 20, name="far")
asyncio.run(Interpreter(settings).run())
"""


def start_client(daemon: RunningDaemon, address: str, lane: str) -> subprocess.Popen[str]:
    """A client process that keeps eleven values, and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address, lane],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end_client(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(LONGEST_WAIT)
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


@pytest.mark.parametrize("end", ["killed", "ends"])
@pytest.mark.parametrize("lane", ["local", "grpc"])
def test_a_client_that_is_gone_keeps_nothing(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary, end: str, lane: str
):
    shared.load(write_library("calc", MATH))
    process = start_client(lent_daemon, lent_daemon.address, lane)
    try:
        assert [count for count, _ in kept(shared).values()] == [11]
        if end == "killed":
            process.kill()
        else:
            assert process.stdin is not None
            process.stdin.close()
        assert nothing_is_kept(shared, 10.0)
    finally:
        end_client(process)


def test_a_client_that_is_silent_for_too_long_is_taken_for_gone(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    """Its machine may have lost its power: its connection does not end by itself.

    On this machine we would know; there a user may have pressed Ctrl-Z.
    """
    listen = ["127.0.0.1:0", f"unix://{tmp_path}/here.sock"]
    daemon = start_daemon(listen=listen, workers=1, constants=IMPATIENT)
    with daemon.connect() as session:
        session.load(write_library("calc", MATH))
        there, here = (start_client(daemon, address, "grpc") for address in daemon.addresses)
        try:
            for process in (there, here):
                process.send_signal(signal.SIGSTOP)
            assert [count for count, _ in kept(session).values()] == [22]
            assert wait_for(lambda: [n for n, _ in kept(session).values()] != [22])
            assert [count for count, _ in kept(session).values()] == [11]
            here.kill()
            assert nothing_is_kept(session, 10.0)
        finally:
            for process in (there, here):
                process.send_signal(signal.SIGCONT)
                end_client(process)


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_released_values_are_freed_by_the_interpreter(
    start_daemon: StartDaemon,
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        [interpreter] = session.interpreters()
        before = resident_bytes(interpreter.pid)
        size = 32 << 20
        values = [session.put(np.ones(size, np.uint8)) for _ in range(4)]
        assert resident_bytes(interpreter.pid) - before > 3 * size
        values[0].close()
        del values
        assert wait_for(lambda: resident_bytes(interpreter.pid) - before < 2 * size)


def test_an_interpreter_takes_its_values_with_it_and_the_error_says_which(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("calc", MATH), on="worker-1")
    x = session.put(np.arange(3.0), on="worker-1")
    y = session.put(np.arange(3.0), on="worker-2")
    pid = pid_of(session, "worker-1")
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: kept(session) == {"worker-2": (1, 24)})
    assert wait_for(lambda: is_recovered(session, {"worker-1": 1, "worker-2": 0}))
    with pytest.raises(oc.RemoteValueGoneError) as caught:
        session.call("math::add", x, np.ones(3))
    assert x.id in str(caught.value)
    why = f"interpreter worker-1 (pid {pid}) went away: its process was ended by SIGKILL"
    assert why in str(caught.value)
    assert caught.value.facts["interpreter"] == "worker-1"
    with pytest.raises(oc.RemoteValueGoneError, match="worker-1"):
        x.numpy()
    assert y.numpy().tolist() == [0, 1, 2]
    assert session.call("math::add", y, y).tolist() == [0, 2, 4]
    assert session.check_invariants() == []
    x.close()
    y.close()
    assert nothing_is_kept(session)


def test_a_call_that_ends_its_interpreter_takes_its_arguments_with_it(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("calc", MATH), on="worker-1")
    x = session.put(np.arange(3.0))
    with pytest.raises((oc.InterpreterDiedError, oc.RemoteValueGoneError), match="worker-1"):
        session.call("math::die", x, remote=True)
    with pytest.raises(oc.RemoteValueGoneError, match="exited with status 3"):
        x.numpy()


def test_a_daemon_that_is_started_again_knows_of_nothing(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=1)
    with first.connect() as session:
        session.load(write_library("calc", MATH))
        x = session.put(np.arange(3.0))
        first.process.kill()
        first.wait()
        second = start_daemon(workers=1)
        assert second.address == first.address
        assert wait_for(lambda: "gone" in repr(x))
        with pytest.raises(oc.RemoteValueGoneError, match=r"the daemon that kept it has ended"):
            session.call("math::add", x, x)
        with contextlib.suppress(oc.DaemonUnavailableError):
            session.call("math::same", np.ones(2))  # which notices that its lane has ended
        y = session.put(np.arange(3.0))
        assert session.call("math::add", y, y).tolist() == [0, 2, 4]
        assert kept(session) == {"worker-1": (1, 24)}


def test_an_interpreter_that_outlives_its_daemon_keeps_nothing_for_the_next_one(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    first = start_daemon(workers=0)
    with worker(first, "--name", "extra") as process, first.connect() as session:
        assert wait_for(lambda: len(session.interpreters()) == 1)
        before = resident_bytes(process.pid)
        size = 32 << 20
        values = [session.put(np.ones(size, np.uint8)) for _ in range(3)]
        assert resident_bytes(process.pid) - before > 2 * size
        first.process.kill()
        first.wait()
        assert wait_for(lambda: resident_bytes(process.pid) - before < size)
        second = start_daemon(workers=0)
        with second.connect() as other:
            assert wait_for(lambda: len(other.interpreters()) == 1)
            with pytest.raises(oc.RemoteValueGoneError):
                values[0].numpy()


def test_values_move_to_the_interpreter_whose_operator_wants_them(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    """Directly: no message between the daemon and anybody has room for them."""
    shared.load(write_library("calc", MATH), on="worker-1")
    shared.load(write_library("more", MORE), on="worker-2")
    x = shared.put(np.arange(4.0), on="worker-1")
    y = shared.put(np.arange(4.0), on="worker-2")
    assert shared.call("math::add", x, y).tolist() == [0, 2, 4, 6]
    assert kept(shared) == {"worker-1": (2, 64)}
    assert (x.interpreter, y.interpreter) == ("worker-1", "worker-1")
    z = shared.call("more::mul", x, x, remote=True)
    assert z.interpreter == "worker-2"
    assert repr(x) == "<RemoteTensor float64 [4] in worker-2>"
    assert kept(shared) == {"worker-1": (1, 32), "worker-2": (2, 64)}
    with shared.program() as p:
        p.output(p.ops.math.add(y, x))
    assert x.interpreter == "worker-1"
    assert shared.ops.math.iadd_(x, np.ones(4)) is x, "it is written to where it is now"
    assert x.numpy().tolist() == [1, 2, 3, 4]
    assert shared.call("more::twice", z).tolist() == [0, 2, 8, 18]
    assert shared.check_invariants() == []
    shared.load(write_library("calc", MATH), on="worker-2")
    counted = {name: count for name, (count, _) in kept(shared).items()}
    assert all(stores(shared, name, count) for name, count in counted.items())


def test_a_value_that_comes_back_is_not_taken_for_the_one_that_went(
    shared: oc.Session, write_library: WriteLibrary
):
    """That it is to be let go of is said on another way than the next call comes."""
    shared.load(write_library("calc", MATH), on="worker-1")
    shared.load(write_library("more", MORE), on="worker-2")
    x, one = shared.put(np.zeros(4)), np.ones(4)
    for number in range(150):
        assert shared.call("more::mul", x, one).tolist() == [number] * 4
        shared.call("math::iadd_", x, one)
    assert kept(shared) == {"worker-1": (1, 32)}
    assert stores(shared, "worker-1", 1)


def test_values_move_over_grpc_where_there_is_no_lane(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    daemon = start_daemon("--max-message-bytes", str(1 << 20), workers=1)
    command = (sys.executable, "-c", FAR, daemon.address, f"unix:{tmp_path}/far.sock")
    with daemon.connect() as session, subprocess.Popen(command) as far:
        try:
            assert wait_for(lambda: len(session.interpreters()) == 2)
            session.load(write_library("calc", MATH), on="worker-1")
            session.load(write_library("more", MORE), on="far")
            x, one = session.put(np.zeros(4), on="worker-1"), np.ones(4)
            for number in range(5):
                assert session.call("more::mul", x, one).tolist() == [number] * 4
                session.call("math::iadd_", x, one)
            with session.program() as p:
                p.output(p.ops.more.mul(x, p.ops.more.twice(x)), remote=True)
            assert p.result.numpy().tolist() == [50] * 4
            assert kept(session) == {"far": (2, 64)}
            assert session.check_invariants() == []
        finally:
            far.terminate()


def test_many_values_move_both_ways_at_once_where_there_is_no_lane(
    start_daemon: StartDaemon, write_library: WriteLibrary, tmp_path: Path
):
    """More than there are threads for: those that fetch values do not keep others from it."""
    count = 10 * KERNEL_THREADS
    daemon = start_daemon("--heartbeat", "10", workers=0)
    commands = [
        (sys.executable, "-c", FAR.replace('"far"', repr(name)), daemon.address, address)
        for name in ("east", "west")
        for address in [f"unix:{tmp_path}/{name}.sock"]
    ]
    with ExitStack() as stack:
        far = [stack.enter_context(subprocess.Popen(command)) for command in commands]
        for process in far:
            stack.callback(process.terminate)
        session = stack.enter_context(daemon.connect())
        assert wait_for(lambda: len(session.interpreters()) == 2)
        session.load(write_library("calc", MATH), on="east")
        session.load(write_library("more", MORE), on="west")
        there = [session.put(np.full(4, n), on="west") for n in range(count)]
        here = [session.put(np.full(4, n), on="east") for n in range(count)]
        for process in far:
            os.kill(process.pid, signal.SIGSTOP)
        try:
            added = [session.submit("math::add", x, x) for x in there]
            multiplied = [session.submit("more::mul", x, x) for x in here]
            assert wait_for(lambda: in_flight(session) == [count, count])
        finally:
            for process in far:
                os.kill(process.pid, signal.SIGCONT)
        for n in range(count):
            assert added[n].result(LONGEST_WAIT).tolist() == [2 * n] * 4
            assert multiplied[n].result(LONGEST_WAIT).tolist() == [n * n] * 4
        for name in ("more", "calc"):  # or the last one would be given both, on its way out
            session.unload(name)


def in_flight(session: oc.Session) -> list[int]:
    return [each.calls_in_flight for each in session.interpreters()]


def test_a_value_that_is_too_large_for_a_message_can_be_fetched_and_moved(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--max-message-bytes", str(1 << 20))
    with daemon.connect() as session:
        session.load(write_library("calc", MATH), on="worker-1")
        session.load(write_library("more", MORE), on="worker-2")
        large = session.call("math::add", np.ones((600, 1)), np.ones((1, 600)), remote=True)
        assert large.nbytes > 2 << 20
        assert (large.numpy() == 2.0).all()
        squares = session.call("more::mul", large, large, remote=True)
        assert (squares.numpy() == 4.0).all()
        assert squares.interpreter == "worker-2"
        assert kept(session) == {"worker-2": (2, 2 * large.nbytes)}
        assert stores(session, "worker-1", 0)
        assert session.check_invariants() == []


def test_a_value_that_is_too_large_to_be_fetched_stays_where_it_is(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    daemon = start_daemon("--max-message-bytes", str(1 << 20), workers=1)
    with daemon.connect(lane="grpc") as session:
        session.load(write_library("calc", MATH))
        large = session.call("math::add", np.ones((600, 1)), np.ones((1, 600)), remote=True)
        for _ in range(2):
            with pytest.raises(oc.MessageTooLargeError):
                large.numpy()
        rows = session.call("math::rows", large, remote=True)
        assert rows[5].numpy().tolist() == [2.0] * 600
        assert kept(session) == {"worker-1": (601, 2 * large.nbytes)}
        assert stores(session, "worker-1", 601)
        assert session.check_invariants() == []


def test_a_replica_that_has_the_values_is_preferred(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("calc", MATH), interpreters=2)
    x, y = (shared.put(np.arange(4.0), on=f"worker-{n}") for n in (1, 2))
    for _ in range(3):
        assert shared.call("math::same", x, remote=True).interpreter == "worker-1"
        assert shared.call("math::same", y, remote=True).interpreter == "worker-2"
    larger = shared.put(np.ones((100, 4)), on="worker-2")
    assert shared.call("math::add", x, larger, remote=True).interpreter == "worker-2"
    assert shared.call("math::same", x, remote=True).interpreter == "worker-2", "it has moved"


def test_calls_that_want_one_value_in_two_interpreters_take_turns(
    lent_daemon: RunningDaemon, shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("calc", MATH), on="worker-1")
    shared.load(write_library("more", MORE), on="worker-2")
    x = shared.put(np.ones(1000))
    add, mul = [], []
    for _ in range(40):
        add.append(shared.submit("math::iadd_", x, np.ones(1000)))
        mul.append(shared.submit("more::mul", x, np.ones(1000)))
    for future in (*add, *mul):
        future.result(LONGEST_WAIT)
    assert x.numpy()[0] == 41, "no write was lost on the way"
    assert sum(count for count, _ in kept(shared).values()) == 1
    assert shared.check_invariants() == []


def test_an_interpreter_that_dies_while_a_value_moves_is_named(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    daemon.expects_errors = True
    session.load(write_library("calc", MATH), on="worker-1")
    x = session.put(np.arange(3.0), on="worker-2")
    pid = pid_of(session, "worker-2")
    os.kill(pid, signal.SIGSTOP)
    try:
        # It does not answer; then it hangs; then it is gone.
        with pytest.raises(oc.RemoteValueGoneError, match="worker-2"):
            session.call("math::add", x, x)
    finally:
        if pid in daemon.processes():
            os.kill(pid, signal.SIGKILL)
    assert session.call("math::add", np.ones(2), np.ones(2)).tolist() == [2, 2]
    assert wait_for(lambda: session.check_invariants() == [])
