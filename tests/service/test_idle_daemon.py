"""Counts of what a daemon and its interpreters do while nothing is asked of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import ml_dtypes
import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.running_daemon import wait_for
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

# In seconds: four heartbeats.
PERIOD = 2.0
# A server of gRPC for asyncio which serves nothing.
BARE = """\
import asyncio, sys
import grpc.aio


async def main():
    server = grpc.aio.server()
    server.add_insecure_port(sys.argv[1])
    await server.start()
    print(flush=True)
    await server.wait_for_termination()


asyncio.run(main())
"""


def switches(pid: int) -> int:
    """Return how often the threads of a process have gone to sleep: each was awake before."""
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        [count] = re.findall(
            r"^voluntary_ctxt_switches:\s+(\d+)", (thread / "status").read_text(), re.M
        )
        found += int(count)
    return found


def test_idle_processes_wake_hardly_more_often_than_a_bare_server_of_grpc(
    start_daemon: StartDaemon, tmp_path: Path
):
    daemon = start_daemon(workers=1)
    with daemon.connect() as session:
        [interpreter] = session.interpreters()
    address = f"unix:{tmp_path}/bare.sock"
    command = (sys.executable, "-c", BARE, address)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as bare,
        grpc.insecure_channel(address) as channel,
    ):
        try:
            grpc.channel_ready_future(channel).result(LONGEST_WAIT)
            pids = (bare.pid, daemon.process.pid, interpreter.pid)

            def woken() -> list[int]:
                before = [switches(pid) for pid in pids]
                threading.Event().wait(PERIOD)
                return [switches(pid) - old for pid, old in zip(pids, before, strict=True)]

            def is_rare() -> bool:
                # Each wakes once or twice for a heartbeat, an interpreter four times a second more.
                of_bare, of_daemon, of_interpreter = last[:] = woken()
                return of_daemon <= 2 * of_bare + 8 and of_interpreter <= 2 * of_bare + 20

            last: list[int] = []
            assert wait_for(is_rare), last  # a busy machine, or what a start leaves behind
        finally:
            bare.kill()


# What is imported before ``serve`` asks for its loop, and by that for the daemon.
IMPORTS = """\
import sys
import opdispatch_client.cli.app
import opdispatch_server.commands.running
import opdispatch_server.daemon.lifecycle
import opdispatch_server.serving.run_folder
names = {name.partition(".")[0] for name in sys.modules} | {"numpy._core"} & sys.modules.keys()
print(*sorted(names), len(sys.modules))
"""
# Extras, and what commands of clients and tests need.
UNUSED = {
    "cryptography",
    "cupy",
    "numpy._core",  # of NumPy itself, which is deferred
    "opentelemetry",
    "opdispatch_stress",
    "prometheus_client",
    "psutil",
    "pydantic",
    "rich",
    "scipy",
    "starlette",
    "uvicorn",
    "watchfiles",
}


def test_daemon_imports_nothing_that_only_its_extras_need():
    command = (sys.executable, "-c", IMPORTS)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT, check=True)
    *packages, count = done.stdout.split()
    assert UNUSED.intersection(packages) == set()
    assert int(count) < 880  # 807 when this was written


LIBRARY = """\
import numpy as np
from opdispatch import Library

lib = Library("passed_on", "DEF")
lib.define("sum(Tensor x, Tensor? y=None) -> Tensor")
lib.impl("sum", lambda x, y: x if y is None else x + y, "CPU")
lib.define("scale.Tensor(Tensor x, Tensor y) -> Tensor")
lib.define("scale.Scalar(Tensor x, Scalar y) -> Tensor")
lib.impl("scale.Tensor", lambda x, y: x * y, "CPU")
lib.impl("scale.Scalar", lambda x, y: x * y, "CPU")
lib.define("join(Tensor[] xs, int dim=0) -> Tensor")
lib.impl("join", lambda xs, dim: np.concatenate(xs, dim), "CPU")
lib.define("clear_(Tensor(a!) x, *, str how='all') -> ()")
lib.impl("clear_", lambda x, *, how: x.fill(0), "CPU")
"""


def has_numpy(pid: int) -> bool:
    """Whether a process has loaded NumPy and ml_dtypes; it must be both or neither."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    first, second = ("_multiarray_umath" in maps, "_ml_dtypes_ext" in maps)
    assert first == second
    return first


def test_daemon_that_passes_calls_on_has_not_loaded_numpy(
    start_daemon: StartDaemon, write_library: WriteLibrary
):
    # A process of its own: the others are forked from one that has loaded NumPy.
    daemon = start_daemon(workers=1, warm=False)
    x = np.ones(3, np.float32)
    with daemon.connect(direct=False) as session:
        session.load(write_library("passed_on", LIBRARY))
        ops = session.ops.passed_on
        assert ops.sum(x, x).tolist() == [2, 2, 2]
        assert ops.sum(x > 0).tolist() == [True] * 3
        half = x.astype(ml_dtypes.bfloat16)
        assert ops.sum(half, half).dtype == half.dtype
        assert ops.scale(x, 3).tolist() == ops.scale(x, x * 3).tolist() == [3, 3, 3]
        assert ops.join([x, x]).shape == (6,)
        kept = session.put(x)
        assert ops.sum(kept, kept).tolist() == [2, 2, 2]
        ops.clear_(x, how="all")
        assert x.tolist() == [0, 0, 0]
        with pytest.raises(oc.ArgumentError, match="got str"):
            ops.sum("x")
        assert [each.name for each in session.libraries()] == ["passed_on"]
        [interpreter] = session.interpreters()
        assert has_numpy(interpreter.pid)
        daemon.expects_errors = True
        os.kill(interpreter.pid, signal.SIGKILL)
        assert wait_for(
            lambda: [each.pid for each in session.interpreters()] not in ([], [interpreter.pid])
        )
        assert ops.sum(np.ones(2)).tolist() == [1, 1]
        assert not has_numpy(daemon.process.pid)
