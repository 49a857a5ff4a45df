"""Which interpreters are reserved for libraries that bring interpreters down.

With two interpreters or more, a third of them, and at least one, become *cells* as soon as a
library is kept apart: cells hold exactly the libraries that are kept apart. So whatever these do
next, the others have interpreters that it cannot reach. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

# One interpreter in so many may be a cell.
INTERPRETERS_PER_CELL = 3


class Separation:
    """The assignment of cells; ``cells`` are names of shared interpreters."""

    def __init__(self) -> None:
        self.cells: set[str] = set()
        self.apart: set[str] = set()
        """The libraries that are kept apart from the others."""

    def update(self, apart: Collection[str], names: Sequence[str], died: str = "") -> bool:
        """Update the libraries kept apart, and the interpreters.

        Return whether anything has changed.

        ``names`` are the interpreters that are live or about to be restarted; one of them has just
        ``died``. It is empty when it comes back, and so makes the best cell.
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
        """Record that an interpreter has joined, with nothing loaded yet.

        Returns whether that changes anything. If it was to be a cell and is the only interpreter,
        the other libraries need it more: another one becomes the cell when it joins.
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
        """Return whether a library may be in an interpreter."""
        return not self.cells or (interpreter in self.cells) == (library in self.apart)
