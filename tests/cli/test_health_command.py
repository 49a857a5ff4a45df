"""``opdispatch health``, as a probe runs it."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

from tests.cli.conftest import RunCommand
from tests.service.conftest import StartDaemon
from tests.service.conftest import start_daemon as start_daemon
from tests.service.running_daemon import wait_for


def test_health_of_what_serves_is_zero(run: RunCommand):
    for words in ([], ["library/shop"], ["interpreter/worker-1"]):
        done = run("health", *words)
        assert (done.code, done.out, done.err) == (0, "SERVING\n", "")
    document = json.loads(run("health", "library/shop", "--json").out)
    assert document == {"service": "library/shop", "status": "SERVING"}


def test_health_of_what_is_not_there_says_what_can_be(run: RunCommand):
    done = run("health", "shop")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("opdispatch: the daemon at unix://")
    assert "has no service 'shop'; expected library/NAME or interpreter/NAME" in done.err


def test_health_without_a_daemon_is_one(run: RunCommand, tmp_path: Path):
    done = run("health", "--address", f"unix://{tmp_path}/missing.sock")
    assert (done.code, done.out) == (1, "")
    assert "no daemon answers" in done.err
    wrong = run("health", "--address", "nowhere")
    assert (wrong.code, wrong.out) == (2, "")
    assert "the address 'nowhere' is not understood" in wrong.err


def test_health_does_not_wait_for_longer_than_its_timeout(run: RunCommand):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = run("health", "--address", f"127.0.0.1:{port}", "--timeout", "0.3")
    assert (done.code, done.out) == (1, "")
    assert "opdispatch: " in done.err


def test_health_of_a_quarantined_interpreter_is_one(run: RunCommand, start_daemon: StartDaemon):
    daemon = start_daemon("--quarantine", "1", workers=1)
    daemon.expects_errors = True
    with daemon.connect() as session:
        (interpreter,) = session.interpreters()
    os.kill(interpreter.pid, signal.SIGKILL)
    words = ("health", "interpreter/worker-1", "--address", daemon.address)
    assert wait_for(lambda: run(*words).code == 1)
    assert run(*words).out == "NOT_SERVING\n"
    assert json.loads(run(*words, "--json").out)["status"] == "NOT_SERVING"
