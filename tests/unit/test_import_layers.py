"""Imports run one way: between the rooms, and between the modules of the dispatcher."""

import ast
import functools
import re
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import opdispatch
from tests.import_graph import circles_in, imports_in, parse

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
    return {name: parse(path.read_text(encoding="utf-8")) for name, path in MODULES[room].items()}


def tree_of_package(package):
    return trees_of(top_of(package))[package]


def packages_of(room):
    """The room itself and the folders in it, but for generated code."""
    names = {name.rpartition(".")[0] for name in MODULES[room]} - {"", "opdispatch_wire.v1"}
    return sorted(names)


@functools.cache
def imports_of(room):
    """The imports of a room's modules, of every kind."""
    return [
        each
        for name, tree in trees_of(room).items()
        for each in imports_in(name, tree, ALL_MODULES)
    ]


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
    assert not [str(each) for each in imports_of(room) if top_of(each.target) in others]


def test_servers_and_channels_for_asyncio_are_made_in_one_place():
    # Others would lose events in a busy loop: see opdispatch_wire.asyncio_grpc.
    made_with = ("grpc.aio.server", "grpc.aio.insecure_channel", "grpc.aio.secure_channel")
    found = {
        module
        for room in ROOMS
        for module, path in MODULES[room].items()
        if "grpc.aio" in path.read_text(encoding="utf-8")
        for node in ast.walk(trees_of(room)[module])
        if isinstance(node, ast.Attribute) and ast.unparse(node) in made_with
    }
    assert found == {"opdispatch_wire.asyncio_grpc"}


def test_the_dispatcher_knows_nothing_of_networks_and_event_loops():
    forbidden = {"grpc", "google", "asyncio", "socket", "ssl", "http", "multiprocessing"}
    assert not [str(each) for each in imports_of("opdispatch") if top_of(each.target) in forbidden]


def test_the_dispatcher_needs_the_standard_library_and_array_libraries_alone():
    allowed = {*sys.stdlib_module_names, "opdispatch", "numpy", "ml_dtypes", "array_api_compat"}
    imports = imports_of("opdispatch")
    assert not [str(each) for each in imports if top_of(each.target) not in allowed]


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


def upward(imports):
    """The imports of a module that stands further down in the map, or of the package itself."""
    own = [each for each in imports if top_of(each.target) == "opdispatch" != each.source]
    return [
        each
        for each in own
        if each.target == "opdispatch" or place_of(each.target) > place_of(each.source)
    ]


def test_a_module_imports_only_from_its_own_entry_and_those_above():
    assert not [str(each) for each in upward(imports_of("opdispatch"))]


# -- circles --------------------------------------------------------------------------------------

FOLDER_CIRCLES = []
"""Those that remain. To be made shorter, never longer: one that is none fails, too."""


def folder_of_module(module):
    """The room that a module is in: its folder; of one beside the folders, the module itself."""
    if module in PACKAGES:
        return module
    folder = module.rpartition(".")[0]
    return module if folder in ROOMS else folder


PACKAGES = {package for room in ROOMS for package in packages_of(room)}


def lines_between(imports, circle, room_of=str):
    """The imports within a circle, to be read where one is found."""
    return [
        str(each)
        for each in imports
        if room_of(each.source) != room_of(each.target)
        and {room_of(each.source), room_of(each.target)} <= set(circle)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_no_files_import_each_other_in_a_circle(room):
    imports = imports_of(room)
    assert not [lines_between(imports, each) for each in circles_in(imports, str)]


def between_folders(room):
    """The imports of a room but for those by a package's face, which hands names on."""
    return [each for each in imports_of(room) if each.source not in PACKAGES]


@pytest.mark.parametrize("room", ROOMS)
def test_no_folders_import_each_other_in_a_circle(room):
    imports = between_folders(room)
    found = [each for each in circles_in(imports, folder_of_module) if each not in FOLDER_CIRCLES]
    assert not [lines_between(imports, each, folder_of_module) for each in found]


def test_no_circle_of_folders_is_excused_that_is_none():
    found = [c for room in ROOMS for c in circles_in(between_folders(room), folder_of_module)]
    assert [each for each in FOLDER_CIRCLES if each not in found] == []


PLANTED = {
    "load": "import opdispatch.dispatch.dispatcher",
    "function": "def f():\n    from opdispatch.dispatch import dispatcher",
    "type": "if TYPE_CHECKING:\n    from opdispatch.dispatch.dispatcher import Dispatcher",
    "string": "def f():\n    import_module('opdispatch.dispatch.dispatcher')",
}
STRINGS = [
    "importlib.import_module('opdispatch.func')",
    "sys.modules['opdispatch.func']",
    "sys.modules.get('opdispatch.func')",
    "NAME = 'opdispatch.func'",
    "__import__('opdispatch.func')",
]


@pytest.mark.parametrize("kind", PLANTED)
def test_an_upward_import_of_any_kind_is_noticed(kind):
    planted = list(
        imports_in("opdispatch.keys.dispatch_key", ast.parse(PLANTED[kind]), ALL_MODULES)
    )
    assert [each.kind for each in planted] == [kind]
    assert upward(planted) == planted


@pytest.mark.parametrize("kind", PLANTED)
def test_an_import_of_any_kind_that_closes_a_circle_is_noticed(kind):
    planted = imports_in("opdispatch.keys.dispatch_key", ast.parse(PLANTED[kind]), ALL_MODULES)
    imports = [*imports_of("opdispatch"), *planted]
    [files] = circles_in(imports, str)
    assert {"opdispatch.keys.dispatch_key", "opdispatch.dispatch.dispatcher"} <= set(files)
    assert any("keys.dispatch_key:" in line for line in lines_between(imports, files))
    [folders] = circles_in(imports, folder_of_module)
    assert {"opdispatch.keys", "opdispatch.dispatch"} <= set(folders)


@pytest.mark.parametrize("text", STRINGS)
def test_an_import_by_a_string_is_noticed_however_it_is_written(text):
    [found] = imports_in("opdispatch.keys.dispatch_key", ast.parse(text), ALL_MODULES)
    assert (found.target, found.kind) == ("opdispatch.func", "string")


def test_an_import_by_a_name_that_is_put_together_counts_as_one_of_the_package():
    tree = ast.parse("import_module(f'opdispatch.{name}')")
    [found] = imports_in("opdispatch.keys.dispatch_key", tree, ALL_MODULES)
    assert (found.target, found.kind) == ("opdispatch", "string")
    assert upward([found]) == [found]


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
