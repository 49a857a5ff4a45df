"""Counts of what a daemon and its interpreters do while nothing is asked of them."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from tests.service.conftest import StartDaemon
from tests.service.running_daemon import wait_for
from tests.waits import LONGEST_WAIT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")

# In seconds: eight heartbeats.
PERIOD = 4.0
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
                return of_daemon <= 2 * of_bare + 16 and of_interpreter <= 2 * of_bare + 40

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
print(*sorted({name.partition(".")[0] for name in sys.modules}), len(sys.modules))
"""
# Extras, and what commands of clients and tests need.
UNUSED = {
    "cryptography",
    "cupy",
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
    assert int(count) < 1000  # 906 when this was written
