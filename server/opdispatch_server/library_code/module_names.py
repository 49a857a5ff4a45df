"""The names of libraries' modules in ``sys.modules``, which several libraries may share.

Note [Natural names]
    A library's modules are imported under names of their own, ``opdispatch_libraries.vN.NAME``,
    so that two libraries, and two versions of one, never share a module. Their ``__name__`` is the
    natural one, NAME, as if the library were on ``sys.path``: pickles contain it, and
    ``import_module(__name__ + ".x")``, ``importlib.resources``, ``inspect`` and ``dataclasses``
    look it up in ``sys.modules``. So it has to be there, too, but may refer to several modules:
    pickle's C code looks into that dictionary and nowhere else.

    While one library uses a name, the module itself is there. Once several use it (two versions,
    two libraries, or an installed package), the entry is a SharedModule, which delegates everything
    to the module of the calling library: that of the innermost frame of a library's code. Each
    library's modules have builtins of their own, which identify their frames. If no library's code
    is running, the newest library's module is used.

    If a package of that name is installed, its own code must not find the library's modules, even
    when a kernel has called it. In that case the innermost frame decides, a library's or not,
    except for frames of modules that look up names on behalf of others (pickle, importlib, joblib).

    Modules of a library that are named like one of the standard library, or like a package that
    the interpreter itself has imported, keep their long name.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, Protocol

_OWN = frozenset({"opdispatch", "opdispatch_server", "opdispatch_wire"})
_SERIALIZERS = frozenset(
    {"joblib", "cloudpickle", "dill", "numpy", "cupy", "pandas", "torch", "skops"}
)
_ON_BEHALF_OF_OTHERS = (sys.stdlib_module_names | _OWN | _SERIALIZERS) | {"__main__"}


class ModuleSource(Protocol):
    """A library's code, as far as its names need it."""

    builtins: dict[str, Any]
    """The builtins of all its modules."""

    def has_module(self, name: str) -> bool:
        """Return whether the library has a module of that natural name."""

    def import_module(self, name: str) -> ModuleType:
        """Return the library's module of that natural name; import it if necessary."""


class SharedModule(ModuleType):
    """The entry in ``sys.modules`` for a name that several libraries use; see the note above."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_shared_name", name)

    def __getattribute__(self, attribute: str) -> Any:
        # An import statement reads only the spec of entries of sys.modules; other code reads
        # attributes of every entry, and must not cause an import by that.
        return getattr(_module_meant(self, is_import=attribute == "__spec__"), attribute)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if isinstance(value, ModuleType) and type(value) is SharedModule:
            value = _module_meant(value)
        setattr(_module_meant(self), attribute, value)

    def __delattr__(self, attribute: str) -> None:
        delattr(_module_meant(self), attribute)

    def __dir__(self) -> list[str]:
        return dir(_module_meant(self))

    def __repr__(self) -> str:
        return repr(_module_meant(self))


def _module_meant(shared: SharedModule, *, is_import: bool = False) -> ModuleType:
    return NAMES.resolve(object.__getattribute__(shared, "_shared_name"), is_import=is_import)


class ModuleNames:
    """Which libraries use which names, in this process.

    ``_lock`` protects everything. It is held only briefly, and never while library code runs.
    Invariant: under each name in ``_modules``, ``sys.modules`` has what ``_place`` puts there.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # By top-level name, the libraries that have it, the newest last.
        self._sources: dict[str, list[ModuleSource]] = {}
        self._by_builtins: dict[int, ModuleSource] = {}
        # By natural name, the imported modules, by library.
        self._modules: dict[str, dict[int, ModuleType]] = {}
        # Top-level names that are installed packages, too, and their modules in use.
        self._also_installed: set[str] = set()
        self._installed: dict[str, ModuleType] = {}
        self._reserved = frozenset(sys.stdlib_module_names) | _OWN
        self._finder = _NaturalFinder(self)

    def reserve_loaded(self) -> None:
        """Reserve the names of everything imported so far: no library can have them."""
        with self._lock:
            theirs = {_top(name) for name in self._modules}
            self._reserved |= {_top(name) for name in list(sys.modules)} - theirs

    def can_have(self, name: str) -> bool:
        """Return whether a library's module may have a natural name."""
        return _top(name) not in self._reserved

    # -- libraries --------------------------------------------------------------------------------

    def enter(self, source: ModuleSource, top_levels: frozenset[str]) -> None:
        """Add a library under those top-level names; it becomes the newest."""
        tops = list(filter(self.can_have, top_levels))
        new = [top for top in tops if top not in self._sources]
        installed = {top for top in new if top in sys.modules or self._find_spec(top, None)}
        with self._lock:
            self._by_builtins[id(source.builtins)] = source
            if self._finder not in sys.meta_path:
                sys.meta_path.insert(0, self._finder)
            self._also_installed |= installed
            for top in tops:
                sources = self._sources.setdefault(top, [])
                if source in sources:
                    sources.remove(source)
                sources.append(source)
                self._place_below(top)

    def leave(self, source: ModuleSource) -> None:
        """Remove a library: its names refer to what they would without it. Idempotent."""
        with self._lock:
            self._by_builtins.pop(id(source.builtins), None)
            for modules in self._modules.values():
                modules.pop(id(source), None)
            for top in [each for each, sources in self._sources.items() if source in sources]:
                self._sources[top].remove(source)
                self._place_below(top)
                if not self._sources[top]:
                    del self._sources[top]
                    self._also_installed.discard(top)

    def add(self, source: ModuleSource, name: str, module: ModuleType) -> None:
        """Add a library's module of that natural name, before its code runs."""
        with self._lock:
            if name not in self._modules and (before := sys.modules.get(name)) is not None:
                self._installed[name] = before
                self._also_installed.add(_top(name))
            self._modules.setdefault(name, {})[id(source)] = module
            self._place(name)

    def discard(self, source: ModuleSource, name: str) -> None:
        """Forget a module whose code raised."""
        with self._lock:
            if name in self._modules:
                self._modules[name].pop(id(source), None)
                self._place(name)

    # -- the meaning of a name --------------------------------------------------------------------

    def find_source(self, name: str) -> ModuleSource | None:
        """Return the library to which a natural name refers, for the calling code.

        None if no library has the name, or the installed module is meant.
        """
        top = _top(name)
        if top not in self._sources:
            return None
        frame: FrameType | None = sys._getframe(1)
        with self._lock:
            sources = self._sources.get(top, [])
            is_installed = top in self._also_installed
            while frame is not None:
                source = self._by_builtins.get(id(frame.f_builtins))
                if source is not None and source in sources:
                    return source
                if is_installed and not _looks_up_for_others(frame):
                    return None
                frame = frame.f_back
            return sources[-1] if sources else None

    def resolve(self, name: str, *, is_import: bool) -> ModuleType:
        """Return the module to which a natural name refers, for the calling code.

        If it is an installed module that has not been imported, only an import statement
        (``is_import``) imports it. Raises ModuleNotFoundError.
        """
        source = self.find_source(name)
        with self._lock:
            modules = self._modules.get(name, {})
            if source is not None:
                module = modules.get(id(source))
            elif name in self._installed or not is_import:
                module = self._installed.get(name) or next(reversed(modules.values()), None)
            else:
                module = None
        if module is not None:
            return module
        return self._import_installed(name) if source is None else source.import_module(name)

    def settle(self, name: str) -> None:
        """Restore the entry of ``sys.modules`` for a name, in case other code changed it."""
        with self._lock:
            if name in self._modules:
                self._place(name)

    # -- installed modules: libraries that are loaded by their names, and other packages ----------

    def get_installed(self, name: str) -> ModuleType | None:
        """Return the module in ``sys.modules`` unless an uploaded library owns it; else None."""
        with self._lock:
            return self._installed.get(name) if name in self._modules else sys.modules.get(name)

    def put_installed(self, name: str, module: ModuleType) -> None:
        """Put such a module into ``sys.modules``."""
        with self._lock:
            if _top(name) in self._sources:
                self._also_installed.add(_top(name))
            if name in self._modules:
                self._installed[name] = module
                self._place(name)
            else:
                sys.modules[name] = module

    def remove_installed(self, name: str) -> None:
        """Remove such a module from ``sys.modules``."""
        with self._lock:
            if name in self._modules:
                self._installed.pop(name, None)
                self._place(name)
            else:
                sys.modules.pop(name, None)

    # -- inside -----------------------------------------------------------------------------------

    def _place_below(self, top: str) -> None:
        for name in [each for each in self._modules if _top(each) == top]:
            self._place(name)

    def _place(self, name: str) -> None:
        """Set the entry of ``sys.modules`` for a name in ``_modules``."""
        top, modules = _top(name), list(self._modules[name].values())
        if not modules:
            del self._modules[name]
            installed = self._installed.pop(name, None)
            if installed is not None:
                sys.modules[name] = installed
            else:
                sys.modules.pop(name, None)
        elif top in self._also_installed or len(self._sources.get(top, ())) > 1:
            if type(sys.modules.get(name)) is not SharedModule:
                sys.modules[name] = SharedModule(name)
        else:
            sys.modules[name] = modules[0]

    def _find_spec(self, name: str, path: Sequence[str] | None) -> ModuleSpec | None:
        """Return the spec of an installed module."""
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is not self._finder and find is not None:
                spec: ModuleSpec | None = find(name, path)
                # An empty folder on the path (a namespace package) is not what the name means.
                if spec is not None and spec.loader is not None:
                    return spec
        return None

    def _import_installed(self, name: str) -> ModuleType:
        """Import the installed module of a name that libraries' modules have, too."""
        parent = name.rpartition(".")[0]
        path = self.resolve(parent, is_import=True).__path__ if parent else None
        spec = self._find_spec(name, path)
        if spec is None or spec.loader is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = importlib.util.module_from_spec(spec)
        with self._lock:
            self._installed[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            with self._lock:
                self._installed.pop(name, None)
            raise
        return module


class _NaturalFinder(MetaPathFinder, Loader):
    """Finds modules of libraries by their natural names, for code that imports these."""

    def __init__(self, names: ModuleNames) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a library's module; None if another finder has to look."""
        source = self._names.find_source(fullname)
        if source is None:
            return None
        if not source.has_module(fullname):
            return None
        # Not imported here, because the import system holds a lock that all threads need.
        return ModuleSpec(fullname, self, loader_state=source)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the library's module; the import system then changes its attributes."""
        module: ModuleType = spec.loader_state.import_module(spec.name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Undo these changes: the module's code has already run."""
        spec = module.__spec__
        assert spec is not None, "the import system has just set it"
        module.__spec__ = spec.loader_state
        self._names.settle(spec.name)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _looks_up_for_others(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and _top(name) in _ON_BEHALF_OF_OTHERS


NAMES = ModuleNames()
