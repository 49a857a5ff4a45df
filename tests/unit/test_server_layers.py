"""The server's two halves, the daemon and its interpreters, know nothing of each other.

Every kind of import counts: at load, in a function, for type checkers alone, and by a string.
"""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

import opdispatch_server
from tests.import_graph import imports_in, parse

PACKAGE = "opdispatch_server"
FOLDER = Path(opdispatch_server.__file__).parent

DAEMON = (
    "daemon",
    "daemon.monitoring",
    "daemon.servicers",
    "daemon.calls",
    "daemon.values",
    "daemon.libraries",
    "daemon.interpreters",
    "daemon.state",
    "daemon.processes",
    "daemon.environments",
    "daemon.board",
    "daemon.event_loop",
)
WORKER = ("worker", "worker.incoming", "worker.execution", "worker.libraries", "worker.values")
SHARED = ("serving", "access", "blame", "metrics", "library_code", "ground")
FLOORS = ("commands", *DAEMON, *WORKER, *SHARED)
"""The rooms of the server, from the top down."""


def modules():
    """Return the modules of the server by dotted name, with their files.

    A folder's ``__init__`` has no code of its own: it hands names on.
    """
    return {
        ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts): path
        for path in sorted(FOLDER.rglob("*.py"))
        if path.name != "__init__.py"
    }


MODULES = modules()


def room_of(module):
    return module.removeprefix(f"{PACKAGE}.").rpartition(".")[0] or "ground"


@functools.cache
def imports():
    """Return what the modules of the server import of each other, in any way."""
    return [
        each
        for module, path in MODULES.items()
        for each in imports_in(module, parse(path.read_text(encoding="utf-8")), MODULES)
        if each.target in MODULES
    ]


def test_every_room_has_its_floor():
    assert {room_of(module) for module in MODULES} == set(FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_nothing_of_those_above_it(room):
    own = [each for each in imports() if room_of(each.source) == room]
    above = FLOORS[: FLOORS.index(room)]
    assert [str(each) for each in own if room_of(each.target) in above] == []


@pytest.mark.parametrize(("half", "other"), [(DAEMON, WORKER), (WORKER, DAEMON)])
def test_neither_half_imports_anything_of_the_other(half, other):
    own = [each for each in imports() if room_of(each.source) in half]
    assert own
    assert [str(each) for each in own if room_of(each.target) in other] == []


def is_named_in(folder, file):
    """Return whether the name of a folder, or one of what is in it, is a word of a file's name."""
    one = {folder, folder[:-1], folder[:-2], f"{folder[:-3]}y"}
    return not one.isdisjoint(file.split("_"))


def test_no_file_in_a_folder_of_either_half_repeats_its_name():
    assert is_named_in("libraries", "library_version")
    assert is_named_in("processes", "process_watch")
    places = [module.split(".")[1:] for module in MODULES]
    assert [each for each in places if len(each) > 2 and is_named_in(*each[-2:])] == []


LOADED = """
import sys
import {module}
print(*(name for name in sys.modules if name.startswith({unwanted!r})))
"""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("opdispatch_server.daemon.lifecycle", "opdispatch_server.worker"),
        ("opdispatch_server.worker.interpreter_process", "opdispatch_server.daemon"),
    ],
)
def test_a_process_that_imports_one_half_loads_nothing_of_the_other(module, unwanted):
    source = LOADED.format(module=module, unwanted=unwanted)
    output = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert output.split() == []
