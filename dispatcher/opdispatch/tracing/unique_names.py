"""Unique names of values, valid as Python identifiers."""

from __future__ import annotations

import keyword
import re

# Names that generated code uses for other purposes.
RESERVED = frozenset({"ops", "constants"})


class UniqueNames:
    """Generator of distinct names: ``exp``, ``exp_1``, ``exp_2``."""

    def __init__(self) -> None:
        self._given = set(RESERVED)
        self._next: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """Return ``wanted``, or a similar name that is free."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII) or "value"
        if not base.isidentifier() or keyword.iskeyword(base):
            base = f"_{base}"
        name, number = base, self._next.get(base, 1)
        while name in self._given:
            name, number = f"{base}_{number}", number + 1
        self._given.add(name)
        self._next[base] = number
        return name
