"""The promised names of the packages: every name of ``__all__``, and nothing else."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import opdispatch
from tests.waits import LONGEST_WAIT

PACKAGES = ["opdispatch", "opdispatch.library", "opdispatch_client"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_promised_names_are_sorted_and_exist(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_every_promised_name_is_documented(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        documented = value if callable(value) or inspect.ismodule(value) else type(value)
        assert inspect.getdoc(documented), f"{package}.{name} has no docstring"


def test_all_that_the_package_imports_is_promised():
    tree = ast.parse(Path(opdispatch.__file__).read_text(encoding="utf-8"))
    late = [part for part in tree.body if isinstance(part, ast.If)]
    names = {
        alias.asname or alias.name
        for statement in [*tree.body, *(inner for part in late for inner in part.body)]
        if isinstance(statement, ast.ImportFrom) and statement.module.startswith("opdispatch")
        for alias in statement.names
    }
    names |= {
        target.id
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    }
    assert set(opdispatch.__all__) == {name for name in names if not name.startswith("_")}


_LATE = """
import sys
import opdispatch
own = [name for name in sys.modules if name.startswith("opdispatch.")]
print(*sorted({name.split(".")[1] for name in own}))
late = "arrays.kernel_block library.autocast_registration tensors.layout_creation"
print([name for name in late.split() if f"opdispatch.{name}" in own])
print(opdispatch.func.__name__, opdispatch.profiler.__name__, opdispatch.vmap.__module__)
"""


def test_rarely_used_modules_are_imported_on_first_use():
    done = subprocess.run(
        [sys.executable, "-c", _LATE],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_WAIT,
    )
    folders, late, names = done.stdout.splitlines()
    floors = "arrays autograd boxing dispatch errors functionalities functorch keys library"
    assert folders == f"{floors} local_state schema tensors"
    assert late == "[]"
    assert names == "opdispatch.func opdispatch.profiler opdispatch.functorch.vmap"


def test_lazily_imported_names_are_attributes():
    assert opdispatch.trace is importlib.import_module("opdispatch.tracing").trace
    assert set(opdispatch.__all__) <= set(dir(opdispatch))
    with pytest.raises(AttributeError, match="'opdispatch' has no attribute 'nothing'"):
        opdispatch.nothing  # noqa: B018


def test_a_class_has_one_name_and_one_home():
    homes = {}
    for name in opdispatch.__all__:
        value = getattr(opdispatch, name)
        if inspect.isclass(value):
            homes.setdefault(value, []).append(name)
            assert getattr(importlib.import_module(value.__module__), value.__name__) is value
    assert [names for names in homes.values() if len(names) > 1] == [
        ["OpOverload", "OperatorHandle"]  # PyTorch's Python name, and its C++ one
    ]


def test_the_packages_say_that_they_are_typed():
    for package in ("opdispatch", "opdispatch_wire", "opdispatch_server", "opdispatch_client"):
        folder = Path(importlib.import_module(package).__file__).parent
        assert (folder / "py.typed").exists()
