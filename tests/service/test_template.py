"""Interpreters are forked from a template, which has nothing of any library."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

import opdispatch_client as oc
from tests.service.conftest import StartDaemon, WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

X = np.zeros(2)

# What a process was forked from shows in what it has: modules, threads, random numbers, streams.
LOOK = """\
import os
import random
import sys
import threading

import numpy as np
from opdispatch import Library

import {name}_only  # a module of its own

lib = Library("{name}", "DEF")
lib.define("modules(Tensor x) -> str[]")
lib.define("numbers(Tensor x) -> float[]")
lib.define("streams(Tensor x) -> str[]")
lib.impl("modules", lambda x: sorted(sys.modules), "CPU")
lib.impl("numbers", lambda x: [random.random(), np.random.random()], "CPU")
lib.impl("streams", lambda x: [os.readlink(f"/proc/self/fd/{{n}}") for n in range(3)], "CPU")
"""


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode()


def find_template(daemon: RunningDaemon) -> int:
    [pid] = (
        pid for pid in daemon.processes() if command_of(pid).startswith("opdispatch: template")
    )
    return pid


def pid_of(session: oc.Session, name: str) -> int:
    return next((each.pid for each in session.interpreters() if each.name == name), 0)


def test_interpreters_are_named_children_of_the_daemon(daemon: RunningDaemon, session: oc.Session):
    for each in session.interpreters():
        assert command_of(each.pid) == f"opdispatch: interpreter {each.name}"
        status = Path(f"/proc/{each.pid}/status").read_text()
        assert f"PPid:\t{daemon.process.pid}\n" in status
        # The mark is in their environment, which the name has not overwritten.
        assert each.pid in daemon.processes()


def test_a_fork_has_nothing_of_libraries_that_others_hold(
    daemon: RunningDaemon, session: oc.Session, tmp_path: Path, write_library: WriteLibrary
):
    def load(name: str, interpreter: str) -> list[str]:
        (tmp_path / f"{name}_only.py").write_text("")
        session.load(write_library(name, LOOK.format(name=name)), interpreter=interpreter)
        return session.call(f"{name}::modules", X)

    assert "one_only" in load("one", "worker-1")
    # Nor has one that is forked after that.
    daemon.expects_errors = True
    before = pid_of(session, "worker-2")
    os.kill(before, signal.SIGKILL)
    assert wait_for(lambda: pid_of(session, "worker-2") not in (0, before))
    assert "one_only" not in load("two", "worker-2")


def test_forks_draw_different_random_numbers(
    session: oc.Session, tmp_path: Path, write_library: WriteLibrary
):
    (tmp_path / "one_only.py").write_text("")
    session.load(write_library("one", LOOK.format(name="one")), interpreters=2)
    drawn = [tuple(session.call("one::numbers", X)) for _ in range(8)]
    assert len({number for pair in drawn for number in pair}) == 16
    stdin, stdout, stderr = session.call("one::streams", X)
    assert stdin == "/dev/null"
    assert stdout == stderr
    assert stdout.startswith("pipe:")


def test_interpreters_are_started_without_a_template_that_has_died(
    daemon: RunningDaemon, session: oc.Session, write_library: WriteLibrary
):
    session.load(write_library("const", constant(1)), interpreter="worker-1")
    daemon.expects_errors = True
    os.kill(find_template(daemon), signal.SIGKILL)
    before = pid_of(session, "worker-1")
    os.kill(before, signal.SIGKILL)
    assert session.ops.const.get(X) == 1
    assert wait_for(lambda: pid_of(session, "worker-1") not in (0, before))
    assert "interpreter_start" in command_of(pid_of(session, "worker-1"))
    assert "is started without it" in daemon.log()


def test_a_killed_daemon_leaves_no_template(start_daemon: StartDaemon):
    daemon = start_daemon(workers=1)
    daemon.signal(signal.SIGKILL)
    daemon.process.wait(LONGEST_WAIT)
    assert wait_for(lambda: not daemon.processes())
