"""The container image: built by ``make image``, and run without any privilege.

It needs podman, runc and an image, which ``OPDISPATCH_TEST_IMAGE`` names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.running_daemon import wait_for
from tests.waits import LONGEST_WAIT

IMAGE = os.environ.get("OPDISPATCH_TEST_IMAGE", "")
pytestmark = pytest.mark.skipif(
    not IMAGE or shutil.which("podman") is None,
    reason="needs podman and OPDISPATCH_TEST_IMAGE, an image made by `make image`",
)
LIBRARY = """
import time
from opdispatch import Library

lib = Library("nap", "DEF")
lib.define("sleep(float seconds) -> float")


def sleep(seconds):
    print("asleep", flush=True)
    time.sleep(seconds)
    return seconds


lib.impl("sleep", sleep, "CompositeExplicitAutograd")
"""


def podman(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["podman", "--runtime", "runc", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)


class Container:
    """One container with a daemon; its logs are those of the daemon."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "nap.py").write_text(LIBRARY)
        limits = ("--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
        locked = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
        mounts = ("--tmpfs=/tmp", "-v", f"{folder}/nap.py:/nap.py:ro")
        done = podman("run", "-d", *limits, *locked, *mounts, *options, IMAGE)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()

    def log(self) -> str:
        done = podman("logs", self.id)
        return done.stdout + done.stderr

    def wait_until_ready(self) -> None:
        assert wait_for(lambda: "listening on" in self.log())

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.id, "opdispatch", *words)

    def exit_code(self) -> int:
        state = json.loads(podman("inspect", self.id).stdout)[0]["State"]
        return int(state["ExitCode"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Container]]:
    containers: list[Container] = []

    def run(*options: str) -> Container:
        containers.append(Container(tmp_path, *options))
        containers[-1].wait_until_ready()
        return containers[-1]

    yield run
    for each in containers:
        podman("rm", "-f", "-t", "0", each.id)


# OpenShift runs an image as a user that it does not know; the default /dev/shm has 64 MiB.
@pytest.mark.parametrize("options", [(), ("--user", "123456:0"), ("--shm-size", "1m")])
def test_container_without_privileges_loads_and_calls(start, options):
    container = start(*options)
    assert container.run("health").stdout == "SERVING\n"
    assert container.run("load", "/nap.py").returncode == 0
    done = container.run("call", "nap::sleep", "0")
    assert (done.stdout, done.stderr) == ("0.0\n", "")


def test_sigterm_lets_a_call_in_flight_finish_and_ends_with_zero(start):
    container = start()
    container.run("load", "/nap.py")
    calling = ["podman", "--runtime", "runc", "exec", container.id, "opdispatch"]
    with subprocess.Popen([*calling, "call", "nap::sleep", "2"], stdout=subprocess.PIPE) as call:
        assert wait_for(lambda: "asleep" in container.log())
        podman("stop", "-t", "10", container.id)
        output, _ = call.communicate(timeout=LONGEST_WAIT)
    assert output == b"2.0\n"
    assert container.exit_code() == 0
    assert "cut off" not in container.log()
