"""Environments and isolated libraries on the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT, RunCommand
from tests.service.packages import offline, reporting, write_wheel
from tests.service.running_daemon import RunningDaemon

ISOLATED = """\
from opdispatch import Library

ballast = bytearray(20 * 2**20)
lib = Library("apart", "DEF")
lib.define("size() -> int")
lib.impl("size", lambda: len(ballast), "CompositeExplicitAutograd")
"""


@pytest.fixture
def needs(tmp_path: Path) -> str:
    """A requirements file beside a library that needs what is in it."""
    write_wheel(tmp_path / "wheels", "clipack", "1.5")
    (tmp_path / "needy.py").write_text(reporting("needy", "clipack"))
    (tmp_path / "needs.txt").write_text("\n".join(offline(Path("wheels"), "clipack")))
    return "needs.txt"


def test_an_environment_is_made_in_front_of_the_user(run: RunCommand, needs: str):
    loaded = run("load", "needy.py", "--requirements", needs)
    assert loaded.code == 0, loaded.err
    assert re.match(r"loaded needy v1 in env-[0-9a-f]{8}@1\n", loaded.out)
    steps = loaded.err.splitlines()
    assert steps[0].startswith("making environment")
    assert steps[-1].startswith("starting interpreter env-")
    assert run("call", "needy::version", "tensor:float32:[1]").out == "1.5\n"
    (listed,) = (i for i in json.loads(run("interpreters", "--json").out) if i["reserved_for"])
    assert listed["reserved_for"].startswith("environment ")
    assert listed["reserved_for"] in run("interpreters").out
    assert run("load", "needy.py", "--requirements", needs).err == ""
    unloaded = run("unload", "needy").out
    assert re.search(r"its interpreters end and free \d+\.\d MiB", unloaded)


def test_on_a_terminal_the_steps_take_one_line_that_goes_away(
    daemon: RunningDaemon, tmp_path: Path
):
    (tmp_path / "apart.py").write_text(ISOLATED)
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [SCRIPT, "--address", daemon.address, "load", "apart.py", "--isolated"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert b" in apart@1\n" in done.stdout
    assert "starting interpreter apart@1" in shown
    with daemon.connect() as session:
        session.unload("apart")


def test_an_isolated_library_gives_back_its_memory(run: RunCommand, tmp_path: Path):
    (tmp_path / "apart.py").write_text(ISOLATED)
    # Another number if the one before is still ending.
    assert re.search(r" in apart@\d\n", run("load", "apart.py", "--isolated").out)
    assert run("call", "apart::size").out == f"{20 * 2**20}\n"
    unloaded = json.loads(run("unload", "apart", "--json").out)
    assert unloaded["active"] is None
    assert unloaded["memory_exact"] is True
    assert unloaded["memory_bytes"] > 20 * 2**20


def test_failed_installation_is_one_line_of_error(run: RunCommand, tmp_path: Path):
    (tmp_path / "apart.py").write_text(ISOLATED)
    (tmp_path / "needs.txt").write_text("--no-index\nno-such-package\n")
    failed = run("load", "apart.py", "--requirements", "needs.txt")
    assert (failed.code, failed.out) == (1, "")
    last = failed.err.splitlines()[-1]
    assert last.startswith("opdispatch: no-such-package cannot be installed: ")
    missing = run("load", "apart.py", "--python", str(tmp_path / "python"))
    assert missing.code == 1
    assert "is not a Python interpreter: there is no such program" in missing.err
    assert run("load", "apart.py", "--requirements", "missing.txt").code == 2
