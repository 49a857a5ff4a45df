"""Modules of libraries come and go while kernels import others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from opdispatch_server.library_code.module_import import FolderImport
from opdispatch_server.library_code.unpacked_libraries import LibraryFolder


class _Imports(str):
    """The name of a module; a look at it finds that another one is imported meanwhile."""

    __slots__ = ()

    def startswith(self, *args: Any) -> bool:
        sys.modules[f"{self}-{len(sys.modules)}"] = ModuleType("imported_meanwhile")
        return super().startswith(*args)


def test_library_is_released_while_another_thread_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "late.py").write_text("answer = 42")
    imported = FolderImport(LibraryFolder(tmp_path, "late.py", "late"), 1_000_001)
    imported.run()
    assert imported.main_module().answer == 42
    sys.modules[_Imports("imports_meanwhile")] = ModuleType("imports_meanwhile")
    imported.forget()
    assert not any("1000001" in name for name in sys.modules)
