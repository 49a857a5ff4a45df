"""Runs a worker interpreter in an environment that need not have opdispatch installed.

    PYTHON -E environment_bootstrap.py PACKAGES [OPTIONS OF interpreter_process]

PACKAGES is a JSON file (see interpreter_packages) that says where the daemon's packages are. Its
own, opdispatch and the others, are taken from there: daemon and interpreters are always of one
version. What these need, such as gRPC, is taken from the environment, and only if it is not
there, and both Pythons have the same binary interface, from the daemon's. Nothing else of the
daemon's environment can be seen, so the environment's own packages, and versions, are what
the library gets. Without options, it only tries whether the interpreter can be imported.

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
    """Finds packages in another environment, after every other finder has been asked.

    A package is taken from one environment as a whole: never a module of it from here,
    because the environment's own, perhaps older version of the package has no such module.
    """

    def __init__(self, folders: dict[str, list[str]]) -> None:
        self._folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a package, or of one below a namespace without an owner."""
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
    """Prepare ``sys.path`` and the rest, then becomes the interpreter."""
    with open(argv[0], encoding="utf-8") as file:
        packages = json.load(file)
    sys.path[0] = os.getcwd()  # as with -m; it was the folder of this file
    for name in ("PYTHONPATH", "PYTHONHOME"):  # of the daemon's, and for what kernels start
        os.environ.pop(name, None)
    sys.meta_path.insert(0, OwnPackages(packages["own"]))
    if sysconfig.get_config_var("SOABI") == packages["abi"]:
        sys.meta_path.append(BorrowedPackages(packages["borrowed"]))
    interpreter = importlib.import_module("opdispatch_server.worker.interpreter_process")
    if argv[1:]:
        interpreter.main(argv[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
