"""Imports run one way: between the rooms, and between the modules of the dispatcher."""

import ast
import functools
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import opdispatch

ROOMS = (
    "opdispatch",
    "opdispatch_wire",
    "opdispatch_server",
    "opdispatch_client",
    "opdispatch_stress",
)
ROOT = Path(__file__).resolve().parents[2]


def folder_of(room):
    [package] = ROOT.glob(f"*/{room}/__init__.py")
    return package.parent


def modules_of(room):
    """The modules of a room by their dotted names, with their files."""
    folder, found = folder_of(room), {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {room: modules_of(room) for room in ROOMS}
ALL_MODULES = {name for found in MODULES.values() for name in found}


@functools.cache
def trees_of(room):
    """The syntax trees of its modules. Not for collecting tests, which every process does."""
    return {
        name: ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for name, path in MODULES[room].items()
    }


def tree_of_package(package):
    return trees_of(top_of(package))[package]


def packages_of(room):
    """The room itself and the folders in it, but for generated code."""
    names = {name.rpartition(".")[0] for name in MODULES[room]} - {"", "opdispatch_wire.v1"}
    return sorted(names)


def imported_by(statement):
    """The modules that an import statement names."""
    if isinstance(statement, ast.Import):
        return {alias.name for alias in statement.names}
    if isinstance(statement, ast.ImportFrom):
        assert statement.level == 0, "imports are absolute"
        inner = {f"{statement.module}.{alias.name}" for alias in statement.names}
        return (inner & ALL_MODULES) or {statement.module}
    return set()


def all_imports(tree):
    """What a module imports anywhere, if only in a function or for type checkers."""
    return set().union(*(imported_by(node) for node in ast.walk(tree)))


def imports_when_loaded(statements):
    """What a module imports as it is imported itself: not in functions, not for type checkers."""
    found = set()
    for statement in statements:
        found |= imported_by(statement)
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            found |= imports_when_loaded(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in ("body", "orelse", "handlers", "finalbody"):
                found |= imports_when_loaded(getattr(statement, block, []))
    return found


def top_of(module):
    return module.partition(".")[0]


@pytest.mark.parametrize(
    ("room", "others"),
    [
        ("opdispatch", ROOMS[1:]),
        ("opdispatch_wire", ROOMS[2:]),
        ("opdispatch_server", ROOMS[3:]),
        ("opdispatch_client", ["opdispatch_server", "opdispatch_stress"]),
        ("opdispatch_stress", ["opdispatch_server"]),
    ],
)
def test_a_room_imports_only_the_rooms_below_it(room, others):
    for name, tree in trees_of(room).items():
        wrong = {module for module in all_imports(tree) if top_of(module) in others}
        assert not wrong, f"{name} imports {wrong}"


def test_servers_and_channels_for_asyncio_are_made_in_one_place():
    # Others would lose events in a busy loop: see opdispatch_wire.asyncio_grpc.
    made_with = ("grpc.aio.server", "grpc.aio.insecure_channel", "grpc.aio.secure_channel")
    found = {
        module
        for room in ROOMS
        for module, tree in trees_of(room).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in made_with
    }
    assert found == {"opdispatch_wire.asyncio_grpc"}


def test_the_dispatcher_knows_nothing_of_networks_and_event_loops():
    forbidden = {"grpc", "google", "asyncio", "socket", "ssl", "http", "multiprocessing"}
    for name, tree in trees_of("opdispatch").items():
        wrong = {module for module in all_imports(tree) if top_of(module) in forbidden}
        assert not wrong, f"{name} imports {wrong}"


def test_the_dispatcher_needs_the_standard_library_and_array_libraries_alone():
    allowed = {*sys.stdlib_module_names, "opdispatch", "numpy", "ml_dtypes", "array_api_compat"}
    for name, tree in trees_of("opdispatch").items():
        wrong = {module for module in all_imports(tree) if top_of(module) not in allowed}
        assert not wrong, f"{name} imports {wrong}"


# -- the map at the top of the package -----------------------------------------------------------


def entries_of_the_map():
    """The entries of the map in the package's docstring, each a list of modules."""
    text = opdispatch.__doc__.partition("from the bottom up")[2].partition("\n\n")[2]
    entries, modules = [], []
    for line in text.rstrip().splitlines():
        names = re.split(r"\s{2,}", line.strip())[0]
        modules += [name.strip().rstrip("/") for name in names.split(",") if name.strip()]
        if not names.endswith(","):  # otherwise the entry goes on in the next line
            entries.append(modules)
            modules = []
    return entries


PLACE = {
    f"opdispatch.{module}": place
    for place, entry in enumerate(entries_of_the_map())
    for module in entry
}


def place_of(module):
    """Return the number of the map's entry that a module, or the folder it is in, belongs to."""
    return PLACE[".".join(module.split(".")[:2])]


def test_every_module_has_its_place_in_the_map_once():
    modules = [module for entry in entries_of_the_map() for module in entry]
    assert len(modules) == len(set(modules))
    known = {name for name in MODULES["opdispatch"] if name.count(".") == 1}
    assert set(PLACE) == known


def test_a_module_imports_only_from_its_own_entry_and_those_above():
    for name, tree in trees_of("opdispatch").items():
        if name == "opdispatch":
            continue
        imported = {m for m in imports_when_loaded(tree.body) if top_of(m) == "opdispatch"}
        wrong = {module for module in imported if place_of(module) > place_of(name)}
        assert not wrong, f"{name} imports {wrong}, which stand below it in the map"


def test_no_two_modules_of_the_tests_are_imported_by_one_name():
    """Those of a folder that is no package are imported by their own names alone."""
    tests = Path(__file__).resolve().parents[1]
    folders = [each for each in tests.iterdir() if list(each.glob("*.py"))]
    plain = [each for each in folders if not (each / "__init__.py").exists()]
    names = [path.name for each in plain for path in each.glob("*.py")]
    assert len(folders) > 6
    assert len(set(names)) == len(names), sorted(each.name for each in plain)


# -- the maps of all packages ---------------------------------------------------------------------


@pytest.mark.parametrize("package", [p for room in ROOMS for p in packages_of(room)])
def test_every_module_is_named_in_the_map_of_its_package(package):
    """That map is the docstring of the package; ``meta_*`` in it names all that begin so."""
    said = set(re.findall(r"\w+\*?", ast.get_docstring(tree_of_package(package))))
    inside = {name.rpartition(".")[2] for name in ALL_MODULES if name.rpartition(".")[0] == package}
    inside.discard("__main__")
    left_out = {name for name in inside if not any(fnmatch(name, each) for each in said)}
    assert not left_out
