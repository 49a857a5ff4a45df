"""Find the packages that an interpreter needs in the daemon's own environment.

``packaging`` takes a tenth of a daemon's import time, and only environments need it.
"""

from __future__ import annotations

import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OWN_PACKAGES = ("opdispatch", "opdispatch_wire", "opdispatch_server")
_OF_THE_COMMAND_LINE = ("typer", "rich")
# The suffix of Python's extension modules; sysconfig has it as SOABI, but reads a large file of
# build settings for it.
ABI = EXTENSION_SUFFIXES[0].split(".")[1]


class Bootstrap(NamedTuple):
    """Starts interpreters in an environment that need not have opdispatch installed.

    The environment's Python runs ``program``, which reads from ``packages`` where the daemon's
    packages are.
    """

    program: Path
    packages: Path

    def command(self, python: Path, *options: str) -> tuple[str, ...]:
        """Return the command that checks whether ``python`` can import an interpreter.

        With an interpreter's options appended, it starts one.
        """
        return (str(python), "-E", *options, str(self.program), str(self.packages))


def interpreter_requirements() -> list[Requirement]:
    """Return an interpreter's requirements: opdispatch's, without extras and command line."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in distribution("opdispatch").requires or ()]
    return [r for r in requirements if _applies(r) and r.name not in _OF_THE_COMMAND_LINE]


def write_packages(path: Path) -> None:
    """Write the file that ``environment_bootstrap`` reads."""
    own = {}
    for name in OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        assert spec is not None, "this code is in one of them"
        assert spec.origin is not None, "they are packages with an __init__.py"
        own[name] = str(Path(spec.origin).parent.parent)
    borrowed: dict[str, set[str]] = {}
    for found in _closure(interpreter_requirements()):
        folder = str(found.locate_file(""))
        for top in _top_levels(found):
            borrowed.setdefault(top, set()).add(folder)
    packages = {
        "abi": ABI,
        "own": own,
        "borrowed": {top: sorted(folders) for top, folders in sorted(borrowed.items())},
    }
    draft = path.with_name(f"{path.name}.{threading.get_ident()}")  # threads may race to write it
    draft.write_text(json.dumps(packages, indent=1))
    draft.rename(path)


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _closure(requirements: list[Requirement]) -> Iterator[Distribution]:
    """Yield the distributions of the requirements and, recursively, of theirs, each once."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    seen: set[str] = set()
    waiting = list(requirements)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            continue  # required only on other systems, or the daemon could not have started
        yield found
        needed = (Requirement(text) for text in found.requires or ())
        waiting += [requirement for requirement in needed if _applies(requirement)]


def _top_levels(found: Distribution) -> set[str]:
    """Return the importable top-level names of a distribution."""
    names = set()
    for file in found.files or ():
        first = re.match(r"[^\W\d]\w*", file.parts[0])
        if file.suffix in (".py", ".so", ".pyd") and first and ".dist-info" not in file.parts[0]:
            names.add(first[0])
    return names
