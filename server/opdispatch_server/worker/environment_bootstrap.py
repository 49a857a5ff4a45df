"""Runs a worker interpreter in an environment that need not have opdispatch installed.

    PYTHON -E environment_bootstrap.py PACKAGES [OPTIONS OF interpreter_process]

PACKAGES is a JSON file (see interpreter_packages) that says where the daemon's packages are. The
packages of opdispatch are imported from there, so that daemon and interpreters always have the same
version. Their dependencies, such as gRPC, are imported from the environment; only if it lacks them,
and both Pythons have the same binary interface, from the daemon's. Nothing else of the daemon's
environment is visible, so libraries get the environment's own packages and versions. Without
options, it only checks whether the interpreter can be imported.

The environment's Python reads this file before anything of opdispatch can be imported.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Sequence  # noqa: UP035


class OwnPackages(MetaPathFinder):
    """Finds packages in given folders, before any other finder is asked."""

    def __init__(self, folders: dict[str, str]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of one of the packages; the modules in it find themselves."""
        folder = self._folders.get(fullname)
        return None if folder is None else PathFinder.find_spec(fullname, [folder])


class BorrowedPackages(MetaPathFinder):
    """Finds packages in another environment, after all other finders.

    A package is taken from one environment as a whole: a module is never added from here to the
    environment's own, perhaps older, version of its package.
    """

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a package, or of one in a namespace package without an owner."""
        top, *below = fullname.split(".")
        folders = self._folders.get(top)
        if folders is None:
            return None
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if below and getattr(parent, "__file__", None) is not None:
            return None
        places = [os.path.join(folder, top, *below[:-1]) for folder in folders]
        return PathFinder.find_spec(fullname, places if below else folders)


def main(argv: Sequence[str]) -> None:
    """Prepare ``sys.path`` and the environment, then run the interpreter."""
    with open(argv[0], encoding="utf-8") as file:
        packages = json.load(file)
    sys.path[0] = os.getcwd()  # as with -m; it was the folder of this file
    # they are the daemon's, and would affect processes that kernels start
    for name in ("PYTHONPATH", "PYTHONHOME"):
        os.environ.pop(name, None)
    sys.meta_path.insert(0, OwnPackages(packages["own"]))
    if sysconfig.get_config_var("SOABI") == packages["abi"]:
        sys.meta_path.append(BorrowedPackages(packages["borrowed"]))
    interpreter = importlib.import_module("opdispatch_server.worker.interpreter_process")
    if argv[1:]:
        interpreter.main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
