"""The names of all operators, as readers look them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from opdispatch.function_schema import OperatorName

if TYPE_CHECKING:
    from opdispatch.operator_entry import OperatorEntry


class NameChange(NamedTuple):
    """What a name leads to from now on: an entry, defined or not, or nothing (None)."""

    name: OperatorName
    entry: OperatorEntry | None
    defined: bool


class NameTable:
    """Operator names to entries, and names without overload to their defined overloads.

    It lives in a ``LeftRight``, so it is changed only by ``update``, twice with the same changes.
    """

    def __init__(self) -> None:
        self.entries: dict[OperatorName, OperatorEntry] = {}
        # In order of definition: the overloads of a call by name are tried in this order.
        self.overloads: dict[str, tuple[OperatorName, ...]] = {}

    def copy(self) -> NameTable:
        """An equal table."""
        table = NameTable()
        table.entries, table.overloads = dict(self.entries), dict(self.overloads)
        return table

    def update(self, changes: Iterable[NameChange]) -> None:
        """Applies changes."""
        for name, entry, defined in changes:
            if entry is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = entry
            known = self.overloads.get(name.name, ())
            if defined and name not in known:
                self.overloads[name.name] = (*known, name)
            elif not defined and name in known:
                rest = tuple(other for other in known if other != name)
                if rest:
                    self.overloads[name.name] = rest
                else:
                    del self.overloads[name.name]

    def agrees_with(self, entries: Iterable[OperatorEntry]) -> bool:
        """Whether it leads to exactly these entries, and to the overloads they define."""
        expected = NameTable()
        expected.update(NameChange(e.name, e, bool(e.definitions)) for e in entries)
        return self.entries == expected.entries and (
            {name: set(overloads) for name, overloads in self.overloads.items()}
            == {name: set(overloads) for name, overloads in expected.overloads.items()}
        )
