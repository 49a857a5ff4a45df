"""Importing a library's code into this process, and releasing it.

An uploaded library is imported from the folder that it has been unpacked to, under module names of
its own: see Note [Natural names] in module_names.py. To its code, the library appears to be on
``sys.path``: its modules import each other by their plain names.
"""

from __future__ import annotations

import importlib
import linecache
import sys
from types import ModuleType
from typing import Protocol

from opdispatch_server.library_code.library_modules import ROOT, LibraryModules, names_below
from opdispatch_server.library_code.module_names import NAMES
from opdispatch_server.library_code.unpacked_libraries import LibraryFolder
from opdispatch_wire.errors import LibraryLoadError

STANDARD_LIBRARIES = ("opdispatch.array_library", "opdispatch.random_library")
"""The kernel libraries that ship with opdispatch."""

_OWN_PACKAGES = ("opdispatch", "opdispatch_server", "opdispatch_wire")


class LibraryImport(Protocol):
    """The code of one version of one library, in this process."""

    def run(self) -> None:
        """Import the code. Raises whatever it raises; ``abandon`` must follow then."""

    def main_module(self) -> ModuleType:
        """Return the module that ``run`` has imported."""

    def confirm(self) -> None:
        """Confirm the import: modules that it replaced are no longer needed."""

    def abandon(self) -> None:
        """Undo ``run``: restore the modules that it replaced."""

    def forget(self) -> None:
        """Remove its modules from ``sys.modules``. Functions that still run may finish."""

    def reinstate(self) -> None:
        """Undo ``forget``, without running any code again."""

    def owns(self, filename: str) -> bool:
        """Return whether a code object with that file name belongs to the library."""


class FolderImport:
    """The import of an uploaded library; it becomes the owner of ``folder``."""

    def __init__(self, folder: LibraryFolder, number: int) -> None:
        self._folder = folder
        self._modules = LibraryModules(folder, f"{ROOT}.v{number}")

    def run(self) -> None:
        """See LibraryImport."""
        self._modules.enter()
        self._modules.import_module(self._folder.main)

    def main_module(self) -> ModuleType:
        """See LibraryImport."""
        return self._modules.import_module(self._folder.main)

    def confirm(self) -> None:
        """See LibraryImport."""

    def abandon(self) -> None:
        """See LibraryImport."""
        self.forget()

    def forget(self) -> None:
        """See LibraryImport."""
        self._modules.leave()
        for path in [each for each in list(linecache.cache) if self._folder.owns(each)]:
            linecache.cache.pop(path, None)
        self._folder.close()

    def reinstate(self) -> None:
        """See LibraryImport."""
        self._modules.enter()

    def owns(self, filename: str) -> bool:
        """See LibraryImport."""
        return self._folder.owns(filename)


class ModuleImport:
    """The import of a module that the interpreter finds by itself.

    Modules of the same package that are imported with it count as its own: they are reread, too,
    when the library is loaded again.
    """

    def __init__(self, name: str, replaced: LibraryImport | None = None) -> None:
        self._name = name
        self._package = name.partition(".")[0]
        self._replaced = replaced
        self._brought: dict[str, ModuleType] = {}
        self._displaced: dict[str, ModuleType] = {}
        self._files: frozenset[str] = frozenset()

    def run(self) -> None:
        """See LibraryImport."""
        if self._package in _OWN_PACKAGES and self._name not in STANDARD_LIBRARIES:
            raise LibraryLoadError(f"{self._name} is a part of opdispatch, not a kernel library")
        names = names_below(self._name)
        self._displaced = {n: m for n in names if (m := NAMES.get_installed(n)) is not None}
        if isinstance(self._replaced, ModuleImport):
            self._displaced |= self._replaced.present()
        for name in {*names, *self._displaced}:
            NAMES.remove_installed(name)
            sys.modules.pop(name, None)  # even that of an upload, until this one is imported
        before = set(sys.modules)
        # The byte code cache distinguishes versions of a file only by the second of their writing.
        dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        importlib.invalidate_caches()
        try:
            importlib.import_module(self._name)
        finally:
            sys.dont_write_bytecode = dont_write
            self._collect(before)

    def main_module(self) -> ModuleType:
        """See LibraryImport."""
        return sys.modules[self._name]

    def confirm(self) -> None:
        """See LibraryImport."""
        self._displaced = {}
        self._replaced = None

    def abandon(self) -> None:
        """See LibraryImport."""
        self.forget()
        for name, module in self._displaced.items():
            NAMES.put_installed(name, module)

    def present(self) -> dict[str, ModuleType]:
        """Return those of its modules that ``sys.modules`` currently has under their names."""
        return {name: m for name, m in self._brought.items() if NAMES.get_installed(name) is m}

    def forget(self) -> None:
        """See LibraryImport."""
        for name in self.present():
            NAMES.remove_installed(name)

    def reinstate(self) -> None:
        """See LibraryImport."""
        for name, module in self._brought.items():
            NAMES.put_installed(name, module)

    def owns(self, filename: str) -> bool:
        """See LibraryImport."""
        return filename in self._files

    def _collect(self, before: set[str]) -> None:
        names = [name for name in names_below(self._package) if name not in before]
        self._brought = {name: sys.modules[name] for name in names}
        for name, module in self._brought.items():
            NAMES.put_installed(name, module)
        for name in names_below(self._package):
            NAMES.settle(name)
        files = (getattr(module, "__file__", None) for module in self._brought.values())
        self._files = frozenset(file for file in files if file)
        for file in self._files:
            linecache.cache.pop(file, None)
