"""Replicas, rollback, draining and reloading on save, from the command line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import RunCommand
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.waits import LONGEST_WAIT

Start = Callable[..., subprocess.Popen[str]]

GREETING = """\
from opdispatch import Library

lib = Library("greeting", "DEF")
lib.define("hello() -> str")
lib.impl("hello", lambda: {answer!r}, "CompositeExplicitAutograd")
"""


@pytest.fixture
def greeting(run: RunCommand, tmp_path: Path) -> Iterator[Path]:
    """A library's file; what is loaded from it is unloaded after the test."""
    path = tmp_path / "greeting.py"
    path.write_text(GREETING.format(answer="hi"))
    yield path
    run("unload", "greeting")


def test_a_library_is_held_by_several_interpreters_and_scaled(run: RunCommand, greeting: Path):
    loaded = run("load", "greeting.py", "--interpreters", "2")
    assert (loaded.code, loaded.err) == (0, "")
    assert re.match(r"loaded greeting v\d+ in worker-\d, worker-\d\n", loaded.out)
    document = json.loads(run("load", "greeting.py", "--interpreters", "3", "--json").out)
    assert document["already_loaded"]
    assert sorted(document["interpreters"]) == ["worker-1", "worker-2"]
    [row] = [line for line in run("libraries").out.splitlines() if line.startswith("greeting")]
    assert "(2 of 3)" in row
    assert document["sha256"][:12] in row
    assert document["loaded_by"] in row
    scaled = run("scale", "greeting", "1")
    assert scaled.code == 0
    assert scaled.out.startswith(f"greeting v{document['version']} is in ")
    assert scaled.out.strip().endswith(document["interpreters"][0])
    assert json.loads(run("scale", "greeting", "1", "--json").out)["interpreters_wanted"] == 1
    assert run("scale", "greeting", "0").code == 2
    assert run("scale", "missing", "1").err.startswith("opdispatch: no library named 'missing'")


def test_a_place_can_be_an_interpreter_or_a_device(run: RunCommand, greeting: Path):
    loaded = json.loads(run("load", "greeting.py", "--on", "worker-2", "--json").out)
    assert loaded["interpreters"] == ["worker-2"]
    assert loaded["role"] == "primary"
    run("unload", "greeting")
    assert json.loads(run("load", "greeting.py", "--on", "cpu", "--json").out)["device"] == "cpu"
    nowhere = run("load", "greeting.py", "--name", "other", "--on", "cuda:7")
    assert (nowhere.code, nowhere.out) == (1, "")
    assert "there is no interpreter with a cuda:7 device; connected: worker-1 (cpu" in nowhere.err
    both = run("load", "greeting.py", "--on", "cpu", "--interpreter", "worker-1")
    assert both.code == 2


def test_a_library_is_rolled_back_and_forward(run: RunCommand, greeting: Path):
    one = json.loads(run("load", "greeting.py", "--json").out)["version"]
    only = run("rollback", "greeting")
    assert (only.code, only.err.count("\n")) == (1, 1)
    assert f"has no version before {one} to go back to" in only.err
    greeting.write_text(GREETING.format(answer="good evening"))
    run("load", "greeting.py")
    back = run("rollback", "greeting")
    two = one + 1
    assert back.out == f"greeting v{one} is active now; v{two}, which was, is kept\n"
    assert run("call", "greeting::hello").out == "hi\n"
    states = {
        library["version"]: library["state"]
        for library in json.loads(run("libraries", "--all", "--json").out)
        if library["name"] == "greeting"
    }
    assert states == {one: "active", two: "kept"}
    document = json.loads(run("rollback", "greeting", "--json").out)
    assert (document["active"]["version"], document["replaced"]["version"]) == (two, one)
    assert run("call", "greeting::hello").out == "good evening\n"


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
    daemon: RunningDaemon, run: RunCommand, start: Start, tmp_path: Path
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


def test_a_library_is_loaded_again_when_it_is_saved(
    run: RunCommand, start: Start, greeting: Path, daemon: RunningDaemon
):
    pytest.importorskip("watchfiles")
    process = start("load", "greeting.py", "--watch", OPDISPATCH_ADDRESS=daemon.address)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "watching greeting.py (Ctrl-C ends this)\n"
        assert process.stdout.readline().startswith("loaded greeting v")
        assert process.stdout.readline() == "  greeting::hello\n"
        greeting.write_text(GREETING.format(answer="second") + "1 / 0\n")
        assert "ZeroDivisionError" in process.stderr.readline()
        assert run("call", "greeting::hello").out == "hi\n"
        # As editors do it: a new file in the place of the old one.
        draft = greeting.with_suffix(".draft")
        draft.write_text(GREETING.format(answer="third"))
        draft.rename(greeting)
        assert process.stdout.readline().startswith("loaded greeting v")
        assert wait_for(lambda: run("call", "greeting::hello").out == "third\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(LONGEST_WAIT) == 130
    finally:
        process.kill()
        process.communicate(timeout=LONGEST_WAIT)


def test_watching_what_is_not_there_is_wrong_usage(run: RunCommand):
    assert run("load", "nowhere.py", "--watch").code == 2
