"""A library's requirements on its interpreters: packages, a Python version, isolation.

``packaging`` takes a tenth of a daemon's import time, and only libraries with requirements need it.
"""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdispatch_server.daemon.environments.script_metadata import read_script_metadata
from opdispatch_wire.errors import LibraryLoadError
from opdispatch_wire.requirements_file import check_line, requirement_line
from opdispatch_wire.v1 import registry_pb2

REQUIREMENTS_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class LibraryHome:
    """Which interpreters can hold a library. The default: the shared ones.

    ``requirements`` are lines of a requirements file, normalized and sorted, without duplicates.
    ``requires_python`` is empty if the daemon's own Python suffices. ``python`` is that of an
    existing environment, and excludes the two before it.
    """

    requirements: tuple[str, ...] = ()
    requires_python: str = ""
    python: str = ""
    isolated: bool = False

    @property
    def has_environment(self) -> bool:
        """Whether its interpreters run outside the daemon's own environment."""
        return bool(self.requirements or self.requires_python or self.python)

    @property
    def is_shared(self) -> bool:
        """Whether the shared interpreters suffice."""
        return not self.has_environment and not self.isolated

    def to_proto(self) -> registry_pb2.Home:
        """Return the home as clients see it."""
        return registry_pb2.Home(
            environment=registry_pb2.Environment(
                requirements=self.requirements,
                requires_python=self.requires_python,
                python=self.python,
            )
            if self.has_environment
            else None,
            isolated=self.isolated,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the home in types that JSON has."""
        return {**dataclasses.asdict(self), "requirements": list(self.requirements)}

    @classmethod
    def from_json(cls, value: object) -> LibraryHome:
        """Return the home that ``to_json`` wrote. Raises ValueError for anything else."""
        match value:
            case {
                "requirements": list(requirements),
                "requires_python": str(requires_python),
                "python": str(python),
                "isolated": bool(isolated),
            } if all(isinstance(line, str) for line in requirements):
                return cls(tuple(requirements), requires_python, python, isolated)
        raise ValueError(f"{value!r} is not what a library needs of its interpreters")


SHARED_HOME = LibraryHome()


def read_home(
    environment: registry_pb2.Environment | None, *, isolated: bool, script: bytes, label: str
) -> LibraryHome:
    """Return the home that a request asks for, or else that in the metadata of ``script``.

    ``label`` is the file's name in messages. Raises LibraryLoadError.
    """
    if environment is None:
        return _home_of_script(script, label, isolated)
    if environment.python and (environment.requirements or environment.requires_python):
        raise LibraryLoadError(
            f"{label} is to run in the existing environment of {environment.python}, so nothing "
            "can be installed for it",
            hint="give either requirements or the Python of an environment",
        )
    check_line(environment.python, "the path of a Python")
    if environment.python and not Path(environment.python).is_absolute():
        raise LibraryLoadError(
            f"{environment.python!r} is not the absolute path of a Python on the daemon's machine"
        )
    return _check_python_version(
        LibraryHome(
            normalise_requirements(environment.requirements),
            environment.requires_python,
            environment.python,
            isolated,
        )
    )


def normalise_requirements(lines: Iterable[str]) -> tuple[str, ...]:
    """Normalize lines of a requirements file: without comments, sorted, without duplicates.

    Raises LibraryLoadError for a line that is not a requirement, an option or a path.
    """
    found = set()
    for line in lines:
        if text := requirement_line(line):
            found.add(_normalise_line(text))
    if len(found) > REQUIREMENTS_LIMIT:
        raise LibraryLoadError(
            f"{len(found)} lines of requirements are too many; the limit is {REQUIREMENTS_LIMIT}"
        )
    return tuple(sorted(found))


def _normalise_line(text: str) -> str:
    if text.startswith("-") or _looks_like_path(text):
        return text  # for the installer to read
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    bare, *options = re.split(r"\s(?=--)", text)  # such as --hash=sha256:...
    try:
        requirement = Requirement(bare.rstrip("\\ "))
    except InvalidRequirement as error:
        raise LibraryLoadError(
            f"{text!r} is not a requirement: {str(error).splitlines()[0]}",
            hint="write it like 'numpy>=2', 'NAME @ URL', or the path of a wheel",
        ) from error
    requirement.name = canonicalize_name(requirement.name)
    return " ".join([str(requirement), *(option.strip() for option in options)])


def _looks_like_path(text: str) -> bool:
    first = text.split("[", 1)[0]
    return first.startswith((".", "/", "~")) or (
        first.endswith((".whl", ".tar.gz", ".zip")) and "@" not in first
    )


def _home_of_script(script: bytes, label: str, isolated: bool) -> LibraryHome:
    metadata = read_script_metadata(script, label)
    dependencies = metadata.get("dependencies", [])
    requires_python = metadata.get("requires-python", "")
    if not isinstance(dependencies, list) or not all(isinstance(d, str) for d in dependencies):
        raise LibraryLoadError(
            f"the script metadata of {label}: dependencies is not a list of strings"
        )
    if not isinstance(requires_python, str):
        raise LibraryLoadError(f"the script metadata of {label}: requires-python is not a string")
    # Options are refused: a process that only means to read the file would run with them.
    for dependency in dependencies:
        if dependency.strip().startswith("-"):
            raise LibraryLoadError(
                f"the script metadata of {label}: {dependency!r} is not a requirement"
            )
    requirements = normalise_requirements(dependencies)
    return _check_python_version(LibraryHome(requirements, requires_python.strip(), "", isolated))


def _check_python_version(home: LibraryHome) -> LibraryHome:
    """Check the home's version of Python; drop the constraint if the daemon's own satisfies it."""
    if not home.requires_python:
        return home
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    check_line(home.requires_python, "a range of versions")
    try:
        wanted = SpecifierSet(home.requires_python)
    except InvalidSpecifier as error:
        raise LibraryLoadError(
            f"{home.requires_python!r} does not say which versions of Python will do",
            hint="write it like '>=3.11'",
        ) from error
    if wanted.contains(platform.python_version(), prereleases=True):
        return dataclasses.replace(home, requires_python="")
    return home
