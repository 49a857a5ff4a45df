"""The catalog of libraries: the versions of each name, and the reasons why operators are gone.

It stores state, and makes no decisions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from pathlib import PurePath
from weakref import WeakValueDictionary

from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState
from opdispatch_wire.errors import LibraryNotFoundError
from opdispatch_wire.v1 import interpreter_pb2

# Below the active version, the one that was active before is kept.
KEPT_VERSIONS = 2
# How many removed operators are remembered, for error messages.
GONE_REMEMBERED = 10_000
# How many libraries a message lists, and how much of a name is compared with others.
_NAMED = 20
_LONGEST_NAME = 200


class LibraryCatalog:
    """The versions kept of each name. Changed in the event loop only.

    ``line`` is a lock for each name, held by a task that changes which versions a name has, or how
    many replicas. Handling an interpreter's death does not wait for it.
    """

    def __init__(self) -> None:
        # By name, in the order in which they were active. The last one is active or waits for an
        # interpreter.
        self._versions: dict[str, list[LibraryVersion]] = {}
        self._last_version: dict[str, int] = {}
        self._load_ids = itertools.count(1)
        self._lines: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        # Why removed operators are gone, for the error when one of them is called.
        self._gone: OrderedDict[str, str] = OrderedDict()

    def line(self, name: str) -> asyncio.Lock:
        """Return the lock of a name; waiters acquire it in order of arrival."""
        return self._lines.setdefault(name, asyncio.Lock())

    def all_versions(self) -> list[LibraryVersion]:
        """Return every version kept, in order of name, then version."""
        return [
            version
            for name in sorted(self._versions)
            for version in sorted(self._versions[name], key=lambda version: version.version)
        ]

    def count_kernel_errors(self, errors: interpreter_pb2.KernelErrors) -> None:
        """Add the errors that an interpreter reported; drop those of versions that are not kept."""
        versions = {version.load_id: version for version in self.all_versions()}
        for each in errors.counts:
            if (version := versions.get(each.load_id)) is not None:
                # A new object each time, because other threads may be reading the old one.
                version.kernel_errors = version.kernel_errors + Counter({each.operator: each.count})

    def kernel_errors(self) -> Counter[str]:
        """Return how many calls of each operator failed, over all versions kept."""
        return sum((version.kernel_errors for version in self.all_versions()), Counter())

    def newest(self) -> list[LibraryVersion]:
        """Return, for each library, the version that is or will be active."""
        return [_current(self._versions[name]) for name in sorted(self._versions)]

    def newest_of(self, name: str) -> LibraryVersion | None:
        """Return a library's version that is or will be active; None for an unknown name."""
        versions = self._versions.get(name)
        return versions[-1] if versions else None

    def get_newest(self, name: str) -> LibraryVersion:
        """Return a library's version that is or will be active. Raises LibraryNotFoundError."""
        newest = self.newest_of(name)
        if newest is None:
            raise self.not_found(name)
        return newest

    def versions_of(self, name: str) -> list[LibraryVersion]:
        """Return the versions of a name, in the order in which they were active."""
        return list(self._versions.get(name, ()))

    def set_versions(self, name: str, versions: list[LibraryVersion]) -> None:
        """Set the versions of a name."""
        if versions:
            self._versions[name] = versions
        else:
            self._versions.pop(name, None)

    def add(self, version: LibraryVersion) -> list[LibraryVersion]:
        """Add a version as the newest of its name; return the versions that are no longer kept.

        Only one version below the active one is kept.
        """
        versions = [v for v in self.versions_of(version.name) if v is not version]
        self._versions[version.name] = [*versions[-1:], version]
        self.note_last_version(version.name, version.version)
        return versions[:-1]

    def last_version(self, name: str) -> int:
        """Return the highest version number that a name has had; 0 if none."""
        return self._last_version.get(name, 0)

    def note_last_version(self, name: str, number: int) -> None:
        """Record the number of a version of this name."""
        self._last_version[name] = max(self.last_version(name), number)

    def next_version(self, name: str) -> int:
        """Return the number of the next version of a name; numbers of failed loads are reused."""
        return self.last_version(name) + 1

    def new_load_id(self) -> int:
        """Return the number for the next version of a name; numbers of failed loads are reused."""
        return next(self._load_ids)

    def library_of(self, operator: str) -> str:
        """Return the name of a library that has the operator now; "" if there is none."""
        found = (version.name for version in self.newest() if version.has_operator(operator))
        return next(found, "")

    def definer_of(self, *, operator: str = "", namespace: str = "") -> str:
        """Return the name of the library that defines the operator or owns the namespace, or ""."""
        for version in self.newest():
            for each in version.registrations:
                if each.kind == "library" and each.namespace == namespace != "":
                    return version.name
                if each.kind == "def" and each.schema and str(each.schema.name) == operator:
                    return version.name
        return ""

    def find_waiting(self, operator: str) -> LibraryVersion | None:
        """Return the version that has the operator and waits for an interpreter."""
        for version in self.newest():
            if version.state is VersionState.WAITING and any(
                operator in (name, name.partition(".")[0]) for name in version.operators
            ):
                return version
        return None

    def explain_absence(self, operator: str) -> str:
        """Return why an operator no longer exists; "" if that is not known."""
        return self._gone.get(operator, "")

    def remember_gone(self, operators: Iterable[str], what: str) -> None:
        """Record why operators are gone."""
        for operator in itertools.islice(operators, GONE_REMEMBERED):
            # Callers may omit the overload name.
            self._gone[operator] = self._gone[operator.partition(".")[0]] = what
        while len(self._gone) > GONE_REMEMBERED:
            self._gone.popitem(last=False)

    def forget_gone(self, operators: Iterable[str]) -> None:
        """Forget why operators were gone: they exist again."""
        for operator in operators:
            self._gone.pop(operator, None)
            self._gone.pop(operator.partition(".")[0], None)

    def not_found(self, name: str, number: int = 0) -> LibraryNotFoundError:
        """Return the error for an unknown library, or an unknown version of one."""
        kept = sorted(self._versions.get(name, ()), key=lambda version: version.version)
        if kept:
            versions = ", ".join(str(version.version) for version in kept)
            return LibraryNotFoundError(
                f"library {name!r} has no version {number}; kept: {versions}", library=name
            )
        loaded = sorted(self._versions)
        more = f" and {len(loaded) - _NAMED} more" if len(loaded) > _NAMED else ""
        return LibraryNotFoundError(
            f"no library named {name!r} is loaded; loaded: "
            f"{', '.join(loaded[:_NAMED]) or 'none'}{more}",
            hint=self._explain_name(name),
            library=name,
        )

    def _explain_name(self, name: str) -> str:
        """Return what a name that no library has refers to, and which library may be meant."""
        operator, source = name.partition(".")[0], PurePath(name).name
        kinds: dict[str, Callable[[LibraryVersion], bool]] = {
            f"operator {name}": lambda v: any(
                operator in (each.partition(".")[0], _without_namespace(each)) or each == name
                for each in v.operators
            ),
            f"namespace {name}": lambda v: any(
                each.partition("::")[0] == name.removesuffix("::") for each in v.operators
            ),
            f"what was loaded from {source}": lambda v: (
                v.source.label in (name, source) or v.name == PurePath(source).stem
            ),
        }
        for what, is_meant in kinds.items():
            if found := [version.name for version in self.newest() if is_meant(version)]:
                return f"{what} is in library {' and '.join(map(repr, found[:_NAMED]))}"
        import difflib  # only errors need it

        close = difflib.get_close_matches(name[:_LONGEST_NAME], self._versions, n=1)
        return f"did you mean {close[0]!r}?" if close else ""


def _current(versions: list[LibraryVersion]) -> LibraryVersion:
    """Return the last version, unless it is being removed and the one below has replaced it."""
    in_force = (VersionState.ACTIVE, VersionState.WAITING)
    return next((v for v in reversed(versions) if v.state in in_force), versions[-1])


def _without_namespace(operator: str) -> str:
    return operator.partition("::")[2].partition(".")[0]
