"""The modules of one version of one uploaded library; see Note [Natural names]."""

from __future__ import annotations

import builtins
import copyreg
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import (
    ExtensionFileLoader,
    ModuleSpec,
    NamespaceLoader,
    PathFinder,
    SourceFileLoader,
    all_suffixes,
)
from types import CodeType, ModuleType
from typing import Any

from opdispatch_server.library_code.module_names import NAMES
from opdispatch_server.library_code.unpacked_libraries import LibraryFolder

ROOT = "opdispatch_libraries"
"""The package that contains the modules of all uploaded libraries, under their long names."""


class LibraryModules:
    """Imports the modules of a library from its folder, each as ``PREFIX.NAME``.

    ``builtins`` are those of its code: ``import`` finds the library's own modules first. Any thread
    may import; only one thread calls ``enter`` and ``leave``.
    """

    def __init__(self, folder: LibraryFolder, prefix: str) -> None:
        self._folder = folder
        self._prefix = prefix
        self._finder = _LibraryFinder(self)
        self.builtins: dict[str, Any] = {**vars(builtins), "__import__": self._import}

    def enter(self) -> None:
        """Add the modules to the import system, under their long names and the natural ones.

        Idempotent.
        """
        sys.modules.setdefault(ROOT, _package(ROOT, []))
        sys.modules.setdefault(self._prefix, _package(self._prefix, [str(self._folder.path)]))
        if self._finder not in sys.meta_path:
            sys.meta_path.insert(0, self._finder)
        NAMES.enter(self, self._folder.top_levels)

    def leave(self) -> None:
        """Remove the modules from the import system. Functions that still run may finish."""
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        NAMES.leave(self)
        for name in names_below(self._prefix):
            sys.modules.pop(name, None)
        for path in filter(self._folder.owns, list(sys.path_importer_cache)):
            sys.path_importer_cache.pop(path, None)
        # Entries that the library added to copyreg would keep all of it alive.
        for cls, function in list(copyreg.dispatch_table.items()):
            if getattr(function, "__builtins__", None) is self.builtins:
                copyreg.dispatch_table.pop(cls, None)

    def has_module(self, name: str) -> bool:
        """Return whether the library has a module of that natural name."""
        if name.partition(".")[0] not in self._folder.top_levels:
            return False
        place = self._folder.path.joinpath(*name.split("."))
        return place.is_dir() or any(
            place.with_name(f"{place.name}{suffix}").is_file() for suffix in all_suffixes()
        )

    def import_module(self, name: str) -> ModuleType:
        """Return the library's module of that natural name; raises whatever its code raises."""
        return importlib.import_module(self._long(name))

    def is_long(self, name: str) -> bool:
        """Return whether a long name belongs to this library."""
        return name.startswith(f"{self._prefix}.")

    def prepare(self, module: ModuleType, long_name: str) -> str:
        """Set a module's builtins and natural name, before its code runs.

        Return that name; "" if it keeps its long one.
        """
        module.__dict__["__builtins__"] = self.builtins
        name = long_name.removeprefix(f"{self._prefix}.")
        if not NAMES.can_have(name):
            return ""
        module.__name__ = name
        is_package = hasattr(module, "__path__")
        module.__package__ = name if is_package else name.rpartition(".")[0]
        NAMES.add(self, name, module)
        return name

    def discard(self, name: str) -> None:
        """Forget a module whose code raised, by its natural name."""
        if name:
            NAMES.discard(self, name)

    def _long(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        """Implement ``import`` for the library's code."""
        absolute = name
        if level and globals is not None and globals.get("__package__"):
            absolute = importlib.util.resolve_name(f"{'.' * level}{name}", globals["__package__"])
        first = absolute.partition(".")[0]
        if first not in self._folder.top_levels:
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = self.import_module(absolute)
        if not fromlist:
            # `import a.b` returns a; `import a.b as c` looks b up in it.
            return module if level else self.import_module(first)
        if hasattr(module, "__path__"):
            for each in self._wanted(module, fromlist):
                self._import_part(module, absolute, each)
        return module

    def _wanted(self, module: ModuleType, fromlist: Sequence[str]) -> list[str]:
        named = [each for each in fromlist if each != "*"]
        return [*named, *getattr(module, "__all__", ())] if "*" in fromlist else named

    def _import_part(self, package: ModuleType, name: str, part: str) -> None:
        """Import a submodule named in ``from package import part``."""
        if hasattr(package, part):
            return
        full = f"{name}.{part}"
        try:
            self.import_module(full)
        except ModuleNotFoundError as error:
            # Then `import` reports it, unless the missing module is one that this module needs.
            if error.name not in (full, self._long(full)):
                raise


class _LibraryFinder(MetaPathFinder):
    def __init__(self, modules: LibraryModules) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the library."""
        if not self._modules.is_long(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None:
            return None
        match spec.loader:
            case SourceFileLoader() as loader:
                spec.loader = _SourceLoader(self._modules, fullname, loader.path)
            case ExtensionFileLoader() as loader:
                spec.loader = _ExtensionLoader(self._modules, fullname, loader.path)
            case None:  # a folder without an __init__.py
                spec.loader = _FolderLoader(self._modules, fullname, spec)
        return spec


class _SourceLoader(SourceFileLoader):
    """Loads a source file; neither reads nor writes byte code."""

    def __init__(self, modules: LibraryModules, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._modules = modules

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Refuse byte code: an uploaded cache may belong to another source."""
        raise OSError("no byte code is kept")

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        name = self._modules.prepare(module, self.name)
        try:
            code = self.get_code(self.name)
            assert isinstance(code, CodeType), "a source file always has code"
            exec(code, module.__dict__)
        except BaseException:
            self._modules.discard(name)
            raise


class _ExtensionLoader(ExtensionFileLoader):
    def __init__(self, modules: LibraryModules, fullname: str, path: str) -> None:
        super().__init__(fullname, path)
        self._modules = modules

    def exec_module(self, module: ModuleType) -> None:
        """Run the extension's own initialization."""
        name = self._modules.prepare(module, self.name)
        try:
            super().exec_module(module)
        except BaseException:
            self._modules.discard(name)
            raise


class _FolderLoader(NamespaceLoader):
    def __init__(self, modules: LibraryModules, fullname: str, spec: ModuleSpec) -> None:
        self._modules = modules
        self._fullname = fullname
        self._path = spec.submodule_search_locations

    def exec_module(self, module: ModuleType) -> None:
        """Set the package's name: it has no code."""
        self._modules.prepare(module, self._fullname)


def names_below(name: str) -> list[str]:
    """Return the names in ``sys.modules`` that are ``name``, or below it."""
    known = list(sys.modules)  # copied in one step: other threads may import meanwhile
    return [each for each in known if each == name or each.startswith(f"{name}.")]


def _package(name: str, path: list[str]) -> ModuleType:
    package = ModuleType(name)
    package.__path__ = path
    return package
