"""Which interpreters are for libraries that bring interpreters down, and which for all others.

With two interpreters or more, a third of them, and at least one, becomes a *cell* as soon as a
library is apart: only libraries that are apart are loaded into it, and they into no other. So
whatever they do next, the others have an interpreter that it cannot reach. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

# Of so many interpreters one may be a cell.
INTERPRETERS_PER_CELL = 3


class Separation:
    """``cells`` are names of interpreters, of those that are everybody's."""

    def __init__(self) -> None:
        self.cells: set[str] = set()
        self.apart: set[str] = set()
        """The libraries that are kept from the others."""

    def update(self, apart: Collection[str], names: Sequence[str], died: str = "") -> bool:
        """Take in which libraries are apart, and which interpreters there are, live or about to
        be started again, of which one has just ``died``; whether anything has changed.

        The one that has died is empty when it comes back, and so makes the best cell.
        """
        before = (set(self.cells), set(self.apart))
        self.apart = set(apart)
        self.cells.intersection_update(names)
        if not self.apart or len(names) < 2:
            self.cells.clear()
        else:
            most = max(1, len(names) // INTERPRETERS_PER_CELL)
            # There may have been more interpreters before: the others need one, too.
            self.cells = set(sorted(self.cells)[:most])
            if died in names and len(self.cells) < most:
                self.cells.add(died)
            if not self.cells:
                self.cells.add(names[-1])
        return before != (self.cells, self.apart)

    def note_joined(self, name: str, ready: Collection[str], names: Sequence[str]) -> bool:
        """Take in that an interpreter has come, with nothing in it yet.

        Whether that changes anything.

        If it was to be a cell, and no other one is there, the others need it more: another one
        becomes the cell, when it comes.
        """
        if name not in self.cells or any(each not in self.cells for each in ready if each != name):
            return False
        absent = [each for each in names if each not in self.cells and each not in ready]
        if not absent:
            return False
        self.cells.remove(name)
        self.cells.add(absent[-1])
        return True

    def may_hold(self, interpreter: str, library: str) -> bool:
        """Return whether a library belongs into an interpreter."""
        return not self.cells or (interpreter in self.cells) == (library in self.apart)
