"""The file of a module is found without importing it, in the ways that an import would."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from opdispatch_server.library_code.digest import digest_content
from opdispatch_server.library_code.module_file import digest_module, find_module_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the package ``kernels``, which must not be imported."""
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "add.py").write_text("one = 1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class EditableFinder:
    """The import hook that setuptools writes for a package that is installed in place."""

    def __init__(self, package: Path) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._package.name:
            return None
        places = [str(self._package)]
        return spec_from_file_location(
            name, self._package / "__init__.py", submodule_search_locations=places
        )


def test_a_module_is_found_in_the_current_folder(folder: Path) -> None:
    assert find_module_file("kernels") == folder / "kernels" / "__init__.py"
    assert find_module_file("kernels.add") == folder / "kernels" / "add.py"
    assert digest_module("kernels.add") == digest_content(b"one = 1")
    assert "kernels" not in sys.modules


def test_a_module_of_an_editable_installation_is_found(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert find_module_file("kernels.add") is None
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder(folder / "kernels")])
    assert find_module_file("kernels.add") == folder / "kernels" / "add.py"
    assert "kernels" not in sys.modules


def test_hooks_of_this_process_do_not_count_for_other_environments(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, EditableFinder(folder / "kernels")])
    assert find_module_file("kernels", places := [str(tmp_path_factory.mktemp("lib"))]) is None
    assert find_module_file("kernels", [*places, str(folder)]) is not None


@pytest.mark.parametrize("name", ["nowhere.to.be.found", "sys", "kernels.missing"])
def test_module_without_a_file_has_no_digest(folder: Path, name: str) -> None:
    assert find_module_file(name) is None
    assert digest_module(name) == ""
