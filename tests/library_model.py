"""What the daemon's registry promises about one library name, said as simply as possible.

A name has at most two versions: the active one, and below it the one that it replaced. Versions are
numbered from 1, and no number is given twice. The content of a version is a number here, its
stamp, with which the library's operator answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from tests.linearizability import UNKNOWN

NOT_FOUND = "not found"


class Version(NamedTuple):
    number: int
    stamp: int


class LibraryState(NamedTuple):
    """One name: the last number that was given, and the versions that are kept, oldest first."""

    last: int = 0
    versions: tuple[Version, ...] = ()

    @property
    def active(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def after_load(self, stamp: int) -> tuple[LibraryState, Any]:
        """The response is the version's number, and whether it was loaded already."""
        if self.active is not None and self.active.stamp == stamp:
            return self, (self.active.number, True)
        return self.with_new_version(stamp)

    def with_new_version(self, stamp: int) -> tuple[LibraryState, Any]:
        """What a load of other content leads to."""
        number = self.last + 1
        return LibraryState(number, (*self.versions[-1:], Version(number, stamp))), (number, False)

    def after_unload(self, number: int) -> tuple[LibraryState, Any]:
        """The response is the number of the version that is active then, or None; 0 means all."""
        below = tuple(v for v in self.versions if number not in (0, v.number))
        if len(below) == len(self.versions):
            return self, NOT_FOUND
        return LibraryState(self.last, below), below[-1].number if below else None

    def call(self) -> Any:
        """The stamp of the active version, or NOT_FOUND."""
        return self.active.stamp if self.active is not None else NOT_FOUND

    def listed(self) -> Any:
        """The numbers of all versions."""
        return tuple(version.number for version in self.versions)


def library_step_with_deaths(
    state: Hashable, kind: str, argument: Any, response: Any
) -> Iterable[LibraryState]:
    """The same where interpreters die.

    The active version may then wait for an interpreter; to load its content again makes a new
    version, which need not wait.
    """
    yield from library_step(state, kind, argument, response)
    assert isinstance(state, LibraryState)
    if kind == "load" and state.active is not None and state.active.stamp == argument:
        after, expected = state.with_new_version(argument)
        if response is UNKNOWN or response == expected:
            yield after


def library_step(
    state: Hashable, kind: str, argument: Any, response: Any
) -> Iterable[LibraryState]:
    """The model for ``check_linearizable``."""
    assert isinstance(state, LibraryState)
    match kind:
        case "load":
            after, expected = state.after_load(argument)
        case "unload":
            after, expected = state.after_unload(argument)
        case "call":
            after, expected = state, state.call()
        case "list":
            after, expected = state, state.listed()
        case _:
            raise ValueError(f"the model has no operation {kind!r}")
    return [after] if response is UNKNOWN or response == expected else []
