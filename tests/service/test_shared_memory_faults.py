"""Shared memory when peers die, or have no room for it; nothing outlives its owner."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

import opdispatch_client as oc
from tests.service.conftest import StartDaemon
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.shared_memory import (
    Door,
    N,
    X,
    interpreter_pid,
    load,
    shared_memory_of,
)
from tests.waits import LONGEST_WAIT

# -- processes that are killed ---------------------------------------------------------------------

CLIENT = """
import sys
import numpy as np
import opdispatch_client as oc

session = oc.connect(sys.argv[1])
x = np.ones(1 << 20, np.float32)
there = session.empty(x.shape, np.float32)
there[:] = 1
kept = [session.call("mem::add", x, there) for _ in range(5)]
for name in ("first", "last"):
    future = session.submit("mem::wait", there, sys.argv[2], name)
    if name == "first":
        print("waiting", flush=True)
        future.result()
print("ready", flush=True)
sys.stdin.read()
"""


def test_killed_client_leaves_no_shared_memory(mem_daemon: RunningDaemon, tmp_path: Path):
    with mem_daemon.connect() as session:
        pid = interpreter_pid(session)
        assert wait_for(lambda: shared_memory_of(pid) == (0, 0))
        doors = [Door(tmp_path, name) for name in ("first", "last")]
        command = [sys.executable, "-c", CLIENT, mem_daemon.address, str(tmp_path)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as client:
            assert client.stdout is not None
            assert client.stdout.readline() == "waiting\n"
            doors[0].wait_entered()
            doors[0].open()
            assert client.stdout.readline() == "ready\n"
            doors[1].wait_entered()
            assert shared_memory_of(pid) != (0, 0)
            client.kill()
            client.wait(LONGEST_WAIT)
        # The kernel that is running still sees its argument.
        doors[1].open()
        assert doors[1].seen() == 1 << 20
        assert wait_for(lambda: shared_memory_of(pid) == (0, 0)), shared_memory_of(pid)
        assert shared_memory_of(mem_daemon.process.pid) == (0, 0)


def test_calls_of_a_killed_interpreter_run_elsewhere_with_what_they_were_given(
    start_daemon: StartDaemon, tmp_path: Path
):
    daemon = start_daemon(workers=2)
    daemon.expects_errors = True
    load(daemon, interpreters=2)
    with daemon.connect() as session:
        there = session.empty(N, np.float32)
        there[:] = 3
        results = [session.ops.mem.add(X, there) for _ in range(8)]
        for name in ("through the daemon", "directly", "directly again"):
            door = Door(tmp_path, name)
            call = session.submit("mem::wait", there, *door.arguments)
            pid = door.wait_entered()
            if name == "directly again":
                assert shared_memory_of(pid) != (0, 0)
                os.kill(pid, signal.SIGKILL)
                assert door.wait_entered() != pid
            door.open()
            assert call.result(LONGEST_WAIT) == 3 * N
        assert all((result == 4).all() for result in results), "what was received stays"
        del results
        assert (session.ops.mem.add(there, there) == 6).all()
    gc.collect()
    del there, call
    assert wait_for(lambda: shared_memory_of(os.getpid()) == (0, 0))


# -- no room ---------------------------------------------------------------------------------------

FEW_DESCRIPTORS = """
import logging
import resource
import os
import sys
import numpy as np
import opdispatch_client as oc

session = oc.connect(sys.argv[1])
x = np.ones(1 << 20, np.float32)
small = np.ones(4, np.float32)
for _ in range(3):
    session.call("mem::add", small, small)
warnings = []
logging.getLogger("opdispatch.client").addFilter(warnings.append)
lowest = os.dup(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))
for n in range(5):
    there = session.empty(x.shape, np.float32)
    there[:] = n
    assert (session.call("mem::add", x, there) == n + 1).all()
print(len(warnings), warnings[0].getMessage())
"""


def test_a_client_without_descriptors_sends_tensors_inline(bystander: oc.Session):
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, bystander.address],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 "), done.stdout
    assert "inline" in done.stdout


def test_a_client_without_descriptors_sends_what_is_too_large_for_that_through_the_daemon(
    start_daemon: StartDaemon,
):
    daemon = start_daemon("--max-message-bytes", str(1 << 20), workers=1)
    load(daemon)
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, daemon.address],
        capture_output=True,
        text=True,
        timeout=LONGEST_WAIT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 "), done.stdout


def leave_no_descriptors(pid: int) -> None:
    """The process can open nothing more: the limit is the lowest number that is free."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(link.name) for link in Path(f"/proc/{pid}/fd").iterdir()}
    lowest = min(set(range(len(taken) + 1)) - taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))


def test_callers_of_an_interpreter_without_descriptors_are_served_while_it_is_replaced(
    start_daemon: StartDaemon,
):
    daemon = start_daemon(workers=1)
    daemon.expects_errors = True
    load(daemon)
    small = np.ones(4, np.float32)
    with daemon.connect() as session:
        for _ in range(3):
            session.ops.mem.add(small, small)
            session.ops.mem.add_(small.copy(), small)
        pid = interpreter_pid(session)
        leave_no_descriptors(pid)
        for _ in range(3):
            assert (session.ops.mem.add(X, X) == 2).all()
            y = X.copy()
            assert session.ops.mem.add_(y, X) is y
            assert (y == 2).all()
        assert wait_for(lambda: [each.pid for each in session.interpreters()] != [pid])
        assert wait_for(session.interpreters)
        assert (session.ops.mem.add(X, X) == 2).all()
