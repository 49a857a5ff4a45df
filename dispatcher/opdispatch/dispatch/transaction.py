"""Several registrations that become visible at once, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from opdispatch.dispatch.registration import Registration, RegistrationHandle

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_entry import OperatorEntry


_Change = tuple[list[RegistrationHandle], int, RegistrationHandle, bool]
"""A handle was inserted into (True), or removed from, a list at an index.

A tuple, not a class, since each registration creates one.
"""


class ChangeLog:
    """The changes of the outermost transaction, and the operators that they affect.

    Guards      belongs to the dispatcher's mutex, held from the first change to the publication.
    Invariants  undoing the changes from last to first restores the state before the first.
    """

    def __init__(self) -> None:
        self.changes: list[_Change] = []
        self.touched: dict[OperatorEntry, None] = {}  # an ordered set
        self.fallbacks_changed = False
        self.namespaces_changed = False
        self.rules_changed = False

    @property
    def has_changes(self) -> bool:
        """Whether anything was changed, even if the change was undone since."""
        return bool(self.changes or self.touched or self.fallbacks_changed)

    def insert(self, handles: list[RegistrationHandle], handle: RegistrationHandle) -> None:
        """Insert ``handle`` at the front of the list, and log it."""
        handles.insert(0, handle)
        handle.live = True
        self.changes.append((handles, 0, handle, True))

    def remove(self, handles: list[RegistrationHandle], handle: RegistrationHandle) -> None:
        """Remove ``handle`` from the list, and log it."""
        place = handles.index(handle)
        del handles[place]
        handle.live = False
        self.changes.append((handles, place, handle, False))

    def undo_to(self, length: int) -> None:
        """Undo all but the first ``length`` changes, in reverse order."""
        while len(self.changes) > length:
            handles, place, handle, inserted = self.changes.pop()
            if inserted:
                del handles[place]
            else:
                handles.insert(place, handle)
            handle.live = not inserted


if TYPE_CHECKING:  # only type checkers need it

    class TransactionOwner(Protocol):
        """The part of a registry that a transaction needs."""

        def begin(self) -> ChangeLog:
            """Take the mutex; return the log of the outermost transaction."""

        def end(self) -> None:
            """Publish the changes if it was the outermost transaction, and release the mutex."""


class Transaction:
    """A ``with`` block whose registrations and undos are published together at its end.

    The block holds the dispatcher's mutex for its thread. An exception undoes everything done in
    the block, publishes nothing, and propagates. Other threads see the changes when the outermost
    block ends, all at one instant: a thread that sees one sees all. The thread itself sees its own
    registrations at once, through every name that it looks up in the block; a handle that it
    obtained earlier calls the published state.
    """

    def __init__(self, registry: TransactionOwner) -> None:
        self._registry = registry
        self._log: ChangeLog | None = None
        self._start = 0

    @property
    def registrations(self) -> list[Registration]:
        """The registrations made in the block and not undone, in order."""
        changes = self._log.changes[self._start :] if self._log is not None else []
        # A handle may be in several lists, such as that of a fallback for an alias key.
        inserted = dict.fromkeys(handle for _, _, handle, is_inserted in changes if is_inserted)
        return [handle.registration for handle in inserted if handle.live]

    def rollback(self) -> None:
        """Undo everything done in the block so far."""
        if self._log is not None:
            self._log.undo_to(self._start)

    def __enter__(self) -> Self:
        self._log = self._registry.begin()
        self._start = len(self._log.changes)
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        try:
            if exc_type is not None:
                self.rollback()
        finally:
            self._log = None
            self._registry.end()
