"""Bringing a library's code into this process, and letting it go again.

An uploaded library's modules live under names of their own, ``opdispatch_libraries.vN.NAME``,
so that two libraries, and two versions of one, never share a module. To the code in it the
library looks as if it lay on ``sys.path``: its modules import each other by their plain names.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Protocol

from opdispatch_server.library_code.library_archive import ArchiveModule, LibraryArchive
from opdispatch_wire.errors import LibraryLoadError

ROOT = "opdispatch_libraries"
STANDARD_LIBRARIES = ("opdispatch.array_library", "opdispatch.random_library")
"""The kernel libraries that come with opdispatch."""

_OWN_PACKAGES = ("opdispatch", "opdispatch_server", "opdispatch_wire")


class LibraryImport(Protocol):
    """The code of one version of one library, in this process."""

    def run(self) -> None:
        """Imports it. Raises whatever the code raises, and then leaves nothing behind."""

    def main_module(self) -> ModuleType:
        """The module that ``run`` has imported."""

    def confirm(self) -> None:
        """The import stays: what it has displaced is not needed any more."""

    def abandon(self) -> None:
        """Undoes ``run``: what it has displaced is there again."""

    def forget(self) -> None:
        """Takes its modules out of ``sys.modules``. Functions that still run finish."""

    def reinstate(self) -> None:
        """Undoes ``forget``, without running anything again."""

    def owns(self, filename: str) -> bool:
        """Whether a code object of that file name belongs to the library."""


class ArchiveImport:
    """The import of an uploaded library."""

    def __init__(self, archive: LibraryArchive, number: int) -> None:
        self._archive = archive
        self._prefix = f"{ROOT}.v{number}"
        self._finder = _ArchiveFinder(archive, self._prefix)
        self._paths = frozenset(module.path for module in archive.modules.values())
        self._brought: dict[str, ModuleType] = {}

    def run(self) -> None:
        """See LibraryImport."""
        for path in self._paths:
            linecache.cache.pop(path, None)  # a version before this one had the same file name
        sys.modules.setdefault(ROOT, _empty_package(ROOT))
        sys.modules[self._prefix] = _empty_package(self._prefix)
        sys.meta_path.insert(0, self._finder)
        try:
            importlib.import_module(f"{self._prefix}.{self._archive.main}")
        except BaseException:
            self.forget()
            raise

    def main_module(self) -> ModuleType:
        """See LibraryImport."""
        return sys.modules[f"{self._prefix}.{self._archive.main}"]

    def confirm(self) -> None:
        """See LibraryImport."""

    def abandon(self) -> None:
        """See LibraryImport."""
        self.forget()

    def forget(self) -> None:
        """See LibraryImport."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        for name in _names_below(self._prefix):
            self._brought[name] = sys.modules.pop(name)

    def reinstate(self) -> None:
        """See LibraryImport."""
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        sys.modules.update(self._brought)

    def owns(self, filename: str) -> bool:
        """See LibraryImport."""
        return filename in self._paths


class ModuleImport:
    """The import of a module that the interpreter finds by itself.

    Modules of the same package that come with it count as its own: they too are read again
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
        self._displaced = {name: sys.modules[name] for name in _names_below(self._name)}
        if isinstance(self._replaced, ModuleImport):
            self._displaced |= self._replaced.present()
        for name in self._displaced:
            del sys.modules[name]
        before = set(sys.modules)
        # The byte code cache tells versions of a file apart by the second it was written in.
        dont_write, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        importlib.invalidate_caches()
        try:
            importlib.import_module(self._name)
        except BaseException:
            self._collect(before)
            self.abandon()
            raise
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
        sys.modules.update(self._displaced)

    def present(self) -> dict[str, ModuleType]:
        """Those of its modules that ``sys.modules`` has under their names now."""
        return {name: m for name, m in self._brought.items() if sys.modules.get(name) is m}

    def forget(self) -> None:
        """See LibraryImport."""
        for name in self.present():
            del sys.modules[name]

    def reinstate(self) -> None:
        """See LibraryImport."""
        sys.modules.update(self._brought)

    def owns(self, filename: str) -> bool:
        """See LibraryImport."""
        return filename in self._files

    def _collect(self, before: set[str]) -> None:
        names = [name for name in _names_below(self._package) if name not in before]
        self._brought = {name: sys.modules[name] for name in names}
        files = (getattr(module, "__file__", None) for module in self._brought.values())
        self._files = frozenset(file for file in files if file)
        for file in self._files:
            linecache.cache.pop(file, None)


class ArchiveLoader(InspectLoader):
    """Loads one module of an archive; knows its source, whatever is on disk by that name."""

    def __init__(self, archive: LibraryArchive, module: ArchiveModule, prefix: str) -> None:
        self._archive = archive
        self._module = module
        self._builtins = _builtins_for(prefix, archive.top_levels)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The default kind of module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code."""
        module.__file__ = self._module.path
        module.__dict__["__builtins__"] = self._builtins
        exec(self.get_code(module.__name__), module.__dict__)

    def get_code(self, fullname: str) -> CodeType:
        """The compiled module; raises SyntaxError."""
        return compile(self._module.source, self._module.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        """The source text; raises SyntaxError or UnicodeDecodeError if it has no text."""
        return importlib.util.decode_source(self._module.source)

    def is_package(self, fullname: str) -> bool:
        """Whether the module is a package."""
        return self._module.is_package

    def get_data(self, path: str) -> bytes:
        """The file of the archive at ``path`` (below ``__file__``); raises OSError."""
        try:
            return self._archive.files[path]
        except KeyError:
            raise FileNotFoundError(f"the library has no file {path}") from None

    def get_line(self, filename: str, number: int) -> str:
        """A line of the source, counted from 1; empty if there is none."""
        if filename != self._module.path:
            return ""
        try:
            lines = self.get_source("").splitlines()
        except (SyntaxError, UnicodeDecodeError):
            return ""
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


class _ArchiveFinder(MetaPathFinder):
    def __init__(self, archive: LibraryArchive, prefix: str) -> None:
        self._archive = archive
        self._prefix = prefix

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the archive."""
        package, _, name = fullname.partition(f"{self._prefix}.")
        module = None if package else self._archive.modules.get(name)
        if module is None:
            return None
        loader = ArchiveLoader(self._archive, module, self._prefix)
        return ModuleSpec(fullname, loader, origin=module.path, is_package=module.is_package)


def _builtins_for(prefix: str, top_levels: frozenset[str]) -> dict[str, Any]:
    """The builtins of a library's modules: ``import`` finds the library's own modules first."""

    def import_module(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        first = name.partition(".")[0]
        if level or first not in top_levels:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{prefix}.{name}", globals, locals, fromlist, 0)
        importlib.import_module(f"{prefix}.{name}")
        return sys.modules[f"{prefix}.{first}"]

    return {**vars(builtins), "__import__": import_module}


def _empty_package(name: str) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = []
    return package


def _names_below(name: str) -> list[str]:
    known = list(sys.modules)  # at once: threads may import something meanwhile
    return [each for each in known if each == name or each.startswith(f"{name}.")]
