"""Counts of kernel visits, by operator and dispatch key."""

from __future__ import annotations

from collections.abc import Mapping

from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

_PLACES = {str(key): place for place, key in enumerate(RUNTIME_KEYS)}


class KeyGrid:
    """Number of kernel visits for each operator and dispatch key; ``str`` formats a table.

    Every redispatch counts: a call that goes from Autograd to CPU has one visit at AutogradCPU and
    one at CPU.
    """

    def __init__(self, visits: Mapping[tuple[str, str], int]) -> None:
        self._visits = dict(visits)

    def count(self, operator: str, key: str) -> int:
        """Return the number of visits of an operator, given by its full name, at a key."""
        return self._visits.get((operator, key), 0)

    def total(self) -> int:
        """Return the total number of visits."""
        return sum(self._visits.values())

    @property
    def operators(self) -> list[str]:
        """Names of the operators, sorted."""
        return sorted({operator for operator, _ in self._visits})

    @property
    def keys(self) -> list[str]:
        """The keys, in dispatch order."""
        return sorted({key for _, key in self._visits}, key=_place_of, reverse=True)

    def __str__(self) -> str:
        keys = self.keys
        rows = [["operator", *keys]]
        rows += [
            [operator, *(str(self.count(operator, key) or "") for key in keys)]
            for operator in self.operators
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, counts, widths[1:])]).rstrip()
            for name, *counts in rows
        )

    def __repr__(self) -> str:
        return f"<KeyGrid of {len(self.operators)} operators, {self.total()} visits>"


def _place_of(key: str) -> tuple[int, str]:
    return _PLACES.get(key, -1), key  # another process may have other keys
