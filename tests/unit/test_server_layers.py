"""The server's two halves, the daemon and its interpreters, know nothing of each other.

Every kind of import counts: at load, in a function, for type checkers alone, and by a string.
"""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import opdispatch_server

PACKAGE = "opdispatch_server"
FOLDER = Path(opdispatch_server.__file__).parent
MODULE_NAME = re.compile(rf"{PACKAGE}(\.\w+)+")

DAEMON = (
    "daemon",
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
SHARED = ("serving", "blame", "library_code", "ground")
FLOORS = ("commands", *DAEMON, *WORKER, *SHARED)
"""The rooms of the server, from the top down."""


def modules():
    """Return the modules of the server by dotted name, without the package's, and their files.

    A folder's ``__init__`` has no code of its own: it hands names on.
    """
    found = {}
    for path in sorted(FOLDER.rglob("*.py")):
        if path.name != "__init__.py":
            found[".".join(path.relative_to(FOLDER).with_suffix("").parts)] = path
    return found


MODULES = modules()


def names_in(tree):
    """Return the dotted names that a module imports, in any way, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
        elif isinstance(node, ast.Constant) and MODULE_NAME.fullmatch(str(node.value)):
            yield node.value, node.lineno


def imports_of(module):
    """Return the modules of the server that one imports, each with the line that does it."""
    found = {}
    path = MODULES[module]
    for name, line in names_in(ast.parse(path.read_text(encoding="utf-8"))):
        inner = name.removeprefix(f"{PACKAGE}.")
        while inner and inner not in MODULES:
            inner = inner.rpartition(".")[0]
        if inner and inner != module and name.startswith(f"{PACKAGE}."):
            found.setdefault(inner, f"{path.relative_to(FOLDER)}:{line}")
    return found


def room_of(module):
    return module.rpartition(".")[0] or "ground"


def circle_in(graph):
    """Return the nodes of a circle, each of which leads to the next one; [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return []


def test_every_kind_of_import_is_found():
    source = f"""
import {PACKAGE}.at_load
from {PACKAGE}.folder import at_load_too
def f():
    from {PACKAGE} import in_a_function
if TYPE_CHECKING:
    from {PACKAGE}.for_types import Name
import_module("{PACKAGE}.by_a_string")
"""
    found = {name.removeprefix(f"{PACKAGE}.") for name, line in names_in(ast.parse(source))}
    assert found == {
        "at_load",
        "folder.at_load_too",
        "in_a_function",
        "for_types.Name",
        "by_a_string",
    }


def test_a_circle_is_found():
    assert circle_in({"a": ["b"], "b": ["c"], "c": []}) == []
    assert set(circle_in({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})) == {"a", "b", "c"}


def test_every_room_has_its_floor():
    assert {room_of(module) for module in MODULES} == set(FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_a_room_imports_nothing_of_those_above_it(room):
    above = set(FLOORS[: FLOORS.index(room)])
    wrong = {
        line: imported
        for module in MODULES
        if room_of(module) == room
        for imported, line in imports_of(module).items()
        if room_of(imported) in above
    }
    assert wrong == {}


@pytest.mark.parametrize(("half", "other"), [(DAEMON, WORKER), (WORKER, DAEMON)])
def test_neither_half_imports_anything_of_the_other(half, other):
    wrong = {
        line: imported
        for module in MODULES
        if room_of(module) in half
        for imported, line in imports_of(module).items()
        if room_of(imported) in other
    }
    assert wrong == {}


def test_no_imports_form_a_circle():
    graph = {module: imports_of(module) for module in MODULES}
    circle = circle_in(graph)
    assert [graph[a][b] for a, b in pairwise(circle)] == []


def is_named_in(folder, file):
    """Return whether the name of a folder, or one of what is in it, is a word of a file's name."""
    one = {folder, folder[:-1], folder[:-2], f"{folder[:-3]}y"}
    return not one.isdisjoint(file.split("_"))


def test_no_file_in_a_folder_of_either_half_repeats_its_name():
    assert is_named_in("libraries", "library_version")
    assert is_named_in("processes", "process_watch")
    places = [module.split(".") for module in MODULES]
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
