"""Which test files are about which module: `make index ARGS=registry`.

A test file is about the modules that it imports, or that define the names it imports, and about
those it is named after. ``indirect_tests.toml`` has the others.
"""

from __future__ import annotations

import ast
import functools
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tests.import_graph import imports_in, parse, statements_in

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
PACKAGES = ("dispatcher", "proto", "client", "server", "stress")
_GENERATED = "opdispatch_wire.v1"
_WHOLE_HOUSE = {"test_import_layers.py", "test_server_layers.py", "test_docstrings.py"}


def modules() -> dict[str, Path]:
    """Return the files of all modules by dotted name, but for generated stubs."""
    found = {}
    for folder in PACKAGES:
        for path in sorted((ROOT / folder).glob("opdispatch*/**/*.py")):
            name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            if not name.startswith(_GENERATED):
                found[name.removesuffix(".__init__")] = path
    return found


@functools.cache
def direct_tests() -> dict[str, set[str]]:
    """Return, for each module, the test files that import it or are named after it."""
    known = modules()
    exported = {
        name: _exports(parse(path.read_text(encoding="utf-8"))) for name, path in known.items()
    }
    found: dict[str, set[str]] = {m: set() for m, path in known.items() if _is_leaf(path)}
    by_stem = defaultdict(set)
    for path in sorted(TESTS.rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        by_stem[path.stem.removeprefix("test_")].add(file)
        if path.name not in _WHOLE_HOUSE:
            for module in _imported(path, known, exported):
                if module in found:
                    found[module].add(file)
    for module, files in found.items():
        for name in _names_in_tests(module):
            files |= by_stem[name]
    return found


@functools.cache
def indirect_tests() -> dict[str, list[str]]:
    """Return the modules, or patterns of modules, that a test file is about without import."""
    return tomllib.loads((TESTS / "indirect_tests.toml").read_text(encoding="utf-8"))


def _names_in_tests(module: str) -> Iterator[str]:
    """Yield what the test file of a module is called after ``test_``.

    That is the module's own name, which does not repeat its folder, or the folder's before it:
    ``test_hooks``, ``test_autograd_hooks``; ``test_journal``, ``test_state_journal``.
    """
    *_, folder, name = module.split(".")
    folder = folder.removeprefix("opdispatch_")
    singular = f"{folder[:-3]}y" if folder.endswith("ies") else folder.removesuffix("s")
    yield from {name, f"{folder}_{name}", f"{singular}_{name}"}


def _is_leaf(path: Path) -> bool:
    return path.name != "__init__.py"


def _exports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return where each name that a module imports from another is defined."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in statements_in(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _imported(
    path: Path, known: Mapping[str, Path], exported: Mapping[str, Mapping[str, tuple[str, str]]]
) -> Iterator[str]:
    tree = parse(path.read_text(encoding="utf-8"))
    yield from (each.target for each in imports_in(path.stem, tree, known))
    for place in _exports(tree).values():
        passed = set()  # a package that imports its own module under its name leads back to itself
        while place not in passed:
            passed.add(place)
            further = exported.get(place[0], {}).get(place[1], place)
            place = further if further[0] in known else place
        yield place[0]


def index() -> dict[str, list[str]]:
    """Return the test files of each module, sorted; none for a module that has no test."""
    return {module: sorted(files or _listed(module)) for module, files in direct_tests().items()}


def _listed(module: str) -> list[str]:
    return [
        file
        for file, patterns in indirect_tests().items()
        if any(fnmatchcase(module, pattern) for pattern in patterns)
    ]


if __name__ == "__main__":
    for module, files in index().items():
        if all(word in module for word in sys.argv[1:]):
            print(module, *files, sep="\n    ")
