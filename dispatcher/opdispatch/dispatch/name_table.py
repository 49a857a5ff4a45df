"""The names of all operators, for lookups by readers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from opdispatch.schema.function_schema import OperatorName

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_entry import OperatorEntry


NameChange = tuple[OperatorName, "OperatorEntry | None", int | None]
"""The new meaning of a name, and the number of its definition, if it has one.

The meaning is an entry, defined or not, or None. A tuple, not a class, since each definition
creates one.
"""


class NameTable:
    """Maps operator names to entries, and names without overload to their defined overloads.

    It lives in a ``LeftRight``, so only ``update`` changes it, twice with the same changes.
    """

    def __init__(self) -> None:
        self.entries: dict[OperatorName, OperatorEntry] = {}
        # In order of definition, in which a call by name tries the overloads.
        self.overloads: dict[str, tuple[OperatorName, ...]] = {}
        self._numbers: dict[OperatorName, int] = {}

    def copy(self) -> NameTable:
        """Return an equal table."""
        table = NameTable()
        table.entries, table.overloads = dict(self.entries), dict(self.overloads)
        table._numbers = dict(self._numbers)
        return table

    def update(self, changes: Iterable[NameChange]) -> None:
        """Apply changes."""
        for name, entry, number in changes:
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry
            if number == self._numbers.get(name):
                continue
            known = self.overloads.get(name.name, ())
            rest = tuple(other for other in known if other != name) if known else known
            if number is None:
                del self._numbers[name]
            else:
                self._numbers[name] = number
                rest = (*rest, name)
                if len(rest) > 1:
                    rest = tuple(sorted(rest, key=self._numbers.__getitem__))
            if rest:
                self.overloads[name.name] = rest
            else:
                del self.overloads[name.name]

    def agrees_with(self, entries: Iterable[OperatorEntry]) -> bool:
        """Return whether the table has exactly these entries and the overloads they define."""
        expected = NameTable()
        expected.update((e.name, e, e.newest_definition_number) for e in entries)
        return (self.entries, self.overloads) == (expected.entries, expected.overloads)
