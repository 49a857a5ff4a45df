"""Rollback from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import GREETING, RunCommand


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
