"""Which environment an interpreter's packages come from."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from opdispatch_server.process_memory import find_memory
from opdispatch_server.worker.environment_bootstrap import BorrowedPackages, OwnPackages


def write(folder: Path, *names: str) -> str:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return str(folder)


def test_own_packages_come_from_where_the_daemon_has_them(tmp_path: Path):
    finder = OwnPackages({"ours": write(tmp_path, "ours/__init__.py", "theirs.py")})
    spec = finder.find_spec("ours")
    assert spec is not None
    assert spec.origin == str(tmp_path / "ours" / "__init__.py")
    assert finder.find_spec("theirs") is None
    assert finder.find_spec("ours.part", [str(tmp_path / "ours")]) is None


def test_a_borrowed_package_comes_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path, "pack/__init__.py", "pack/new.py", "hidden.py")
    finder = BorrowedPackages({"pack": [folder]})
    assert finder.find_spec("pack") is not None
    assert finder.find_spec("hidden") is None
    # The environment has a package of that name itself, without that module.
    own = ModuleType("pack")
    own.__file__ = "/environment/pack/__init__.py"
    monkeypatch.setitem(sys.modules, "pack", own)
    assert finder.find_spec("pack.new", ["/environment/pack"]) is None


def test_a_namespace_may_be_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path, "space/borrowed/__init__.py", "space/borrowed/deep/x.py")
    finder = BorrowedPackages({"space": [folder]})
    monkeypatch.setitem(sys.modules, "space", ModuleType("space"))
    spec = finder.find_spec("space.borrowed", ["/environment/space"])
    assert spec is not None
    assert spec.origin == str(tmp_path / "space" / "borrowed" / "__init__.py")
    assert finder.find_spec("space.missing", ["/environment/space"]) is None


def test_the_memory_of_a_process_is_known_while_it_lives():
    mine = find_memory(os.getpid())
    assert mine is not None
    assert 2**20 < mine < 2**36
    assert find_memory(2**22 + 1) is None
