"""Modules of libraries come and go while kernels import others."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from opdispatch_server.library_code.library_archive import read_archive
from opdispatch_server.library_code.module_import import ArchiveImport


class _Imports(str):
    """The name of a module; whoever looks at it finds that another one is imported meanwhile."""

    __slots__ = ()

    def startswith(self, *args: Any) -> bool:
        sys.modules[f"{self}-{len(sys.modules)}"] = ModuleType("imported_meanwhile")
        return super().startswith(*args)


def test_a_library_is_let_go_of_while_another_thread_imports_something(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    imported = ArchiveImport(read_archive(b"answer = 42", "late.py", "late"), 1_000_001)
    imported.run()
    assert imported.main_module().answer == 42
    sys.modules[_Imports("imports_meanwhile")] = ModuleType("imports_meanwhile")
    imported.forget()
    assert not any("1000001" in name for name in sys.modules)
    imported.reinstate()
    assert imported.main_module().answer == 42
    imported.forget()
