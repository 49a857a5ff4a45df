"""Draining from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import RunCommand, StartCommand
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT


def test_an_interpreter_is_drained_and_used_again(run: RunCommand, greeting: Path):
    run("load", "greeting.py", "--on", "worker-2")
    try:
        assert run("drain", "worker-2").out == "worker-2 is drained\n"
        states = {i["name"]: i["state"] for i in json.loads(run("interpreters", "--json").out)}
        assert states["worker-2"] == "drained"
        assert "drained" in run("interpreters").out
        assert run("call", "greeting::hello").out == "hi\n"
        refused = run("load", "greeting.py", "--on", "worker-2")
        assert refused.code == 1
        assert "is being drained and takes no new libraries" in refused.err
    finally:
        undone = run("drain", "worker-2", "--undo")
    assert undone.out == "worker-2 is ready\n"


def test_drain_waits_until_the_last_call_has_ended(
    daemon: RunningDaemon, run: RunCommand, start: StartCommand, tmp_path: Path
):
    folder = tmp_path / "gate"
    folder.mkdir()
    with daemon.connect() as session:
        (holder,) = next(each for each in session.libraries() if each.name == "shop").interpreters
        call = session.submit("shop::wait", str(folder))
        assert wait_for((folder / "entered").exists)
        process = start("drain", holder, "--wait", OPDISPATCH_ADDRESS=daemon.address)
        try:
            late = run("drain", holder, "--wait", "--timeout", "0.5")
            assert (late.code, late.out.startswith(f"{holder} is draining (")) == (1, True)
            assert late.err.endswith(f"opdispatch: {holder} was not drained within 0.5 s\n")
            assert process.poll() is None
            (folder / "leave").touch()
            out, _ = process.communicate(timeout=LONGEST_WAIT)
            assert (process.returncode, out) == (0, f"{holder} is drained\n")
            assert call.result() == 1
        finally:
            (folder / "leave").touch()
            process.kill()
            process.communicate(timeout=LONGEST_WAIT)
            session.drain(holder, undo=True)
    wrong = run("drain", holder, "--wait", "--undo")
    assert (wrong.code, wrong.out) == (2, "")
