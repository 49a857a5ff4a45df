"""Finds the file from which a module would be imported, without importing anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from opdispatch_server.library_code.digest import digest_content


def digest_module(name: str, places: Sequence[str] | None = None) -> str:
    """Return the SHA-256 of the file of the module ``name``; "" if there is no such file.

    Looks where the daemon's own interpreters look: in the current folder, in ``sys.path``, then
    with import hooks, such as those of editable installations; or in ``places`` instead. Packages
    are not imported on the way, so modules of one that changes its ``__path__`` are not found.
    """
    path = find_module_file(name, places)
    try:
        return digest_content(path.read_bytes()) if path else ""
    except OSError:
        return ""


def find_module_file(name: str, elsewhere: Sequence[str] | None = None) -> Path | None:
    """Return the file of the module ``name``; None if it does not exist, or is not a file."""
    places = [str(Path.cwd()), *(sys.path if elsewhere is None else elsewhere)]
    qualified = ""
    spec = None
    PathFinder.invalidate_caches()
    for part in name.split("."):
        qualified = f"{qualified}.{part}" if qualified else part
        spec = PathFinder.find_spec(qualified, places)
        if spec is None and elsewhere is None and qualified == part:
            spec = _find_by_hooks(qualified)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _find_by_hooks(name: str) -> ModuleSpec | None:
    """Find a top-level module with the import hooks of this process."""
    specs = (hook.find_spec(name, None) for hook in sys.meta_path if hasattr(hook, "find_spec"))
    return next(filter(None, specs), None)
