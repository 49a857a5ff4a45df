"""A model of the daemon's registry for one library name, as simple as possible.

A name has at most two versions: the active one, and below it the one that was active before.
Versions are numbered from 1, and no number is given twice. The content of a version is a number
here, its stamp, with which the library's operator answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from opdispatch_stress.linearizability import UNKNOWN

NOT_FOUND = "not found"


class Version(NamedTuple):
    number: int
    stamp: int


class LibraryState(NamedTuple):
    """One name: the last number that was given, and the versions that are kept, the active last."""

    last: int = 0
    versions: tuple[Version, ...] = ()

    @property
    def active(self) -> Version | None:
        return self.versions[-1] if self.versions else None

    def after_load(self, stamp: int) -> tuple[LibraryState, Any]:
        """The response is the version's number, and whether it was loaded already."""
        if self.active is not None and self.active.stamp == stamp:
            return self, (self.active.number, True)
        number = self.last + 1
        return LibraryState(number, (*self.versions[-1:], Version(number, stamp))), (number, False)

    def after_unload(self, number: int) -> tuple[LibraryState, Any]:
        """The response is the number of the version that is active then, or None; 0 means all."""
        below = tuple(v for v in self.versions if number not in (0, v.number))
        if len(below) == len(self.versions):
            return self, NOT_FOUND
        return LibraryState(self.last, below), below[-1].number if below else None

    def after_rollback(self) -> tuple[LibraryState, Any]:
        """The response is the number of the version that is active then."""
        if len(self.versions) < 2:
            return self, NOT_FOUND
        before, top = self.versions
        return LibraryState(self.last, (top, before)), before.number

    def scale(self) -> Any:
        """The number of the active version, or NOT_FOUND."""
        return self.active.number if self.active is not None else NOT_FOUND

    def call(self) -> Any:
        """The stamp of the active version, or NOT_FOUND."""
        return self.active.stamp if self.active is not None else NOT_FOUND

    def listed(self) -> Any:
        """The numbers of all versions, sorted."""
        return tuple(sorted(version.number for version in self.versions))


def library_step_with_deaths(
    state: Hashable, kind: str, argument: Any, response: Any
) -> Iterable[LibraryState]:
    """The same where interpreters die.

    The active version may then wait for an interpreter. To load its content again gives it one: it
    was not loaded already, and it is the same version.
    """
    yield from library_step(state, kind, argument, response)
    assert isinstance(state, LibraryState)
    active = state.active
    if kind == "load" and active is not None and active.stamp == argument:
        yield from [state] if response == (active.number, False) else []


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
        case "rollback":
            after, expected = state.after_rollback()
        case "scale":
            after, expected = state, state.scale()
        case "call":
            after, expected = state, state.call()
        case "list":
            after, expected = state, state.listed()
        case _:
            raise ValueError(f"the model has no operation {kind!r}")
    return [after] if response is UNKNOWN or response == expected else []
