"""Libraries in several interpreters, from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import RunCommand


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
