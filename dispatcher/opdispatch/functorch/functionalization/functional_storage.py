"""The storage that a base and its views share, with its pending writes.

Mirrors ``ATen/FunctionalStorageImpl.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from opdispatch.functorch.functionalization.view_meta import Strided, ViewMeta, scatter, stand_in

if TYPE_CHECKING:  # nothing at run time asks for it

    class StorageLevel(Protocol):
        """The part of a ``Level`` that its storages and tensors need."""

        is_over: bool

        def below(self) -> AbstractContextManager[None]:
            """Return a context manager that dispatches calls of values below the level."""


class FunctionalStorage:
    """A base's value and its pending writes, which are applied when it is next read.

    Belongs to one level. Not thread-safe.
    """

    __slots__ = ("_layout", "_updates", "base", "generation", "level")

    def __init__(self, base: Any, level: StorageLevel) -> None:
        self.base = base
        self.level = level
        self.generation = 0
        """Number of writes so far. A tensor with a lower generation is out of date."""
        self._updates: list[tuple[tuple[ViewMeta, ...], Any]] = []
        # The strides of the initial value, which no write changes.
        array = getattr(base, "array", base)
        self._layout = (tuple(array.shape), array.dtype, getattr(array, "strides", None))

    def add_update(self, views: tuple[ViewMeta, ...], value: Any) -> None:
        """Record a write of ``value`` to the view that the steps ``views`` make of the base."""
        self._updates.append((views, value))
        self.generation += 1

    def apply_updates(self) -> None:
        """Apply the pending writes to the base. Must be called below the level."""
        while self._updates:
            views, value = self._updates[0]
            self.base = scatter(self.base, views, value)
            del self._updates[0]

    def strided(self, views: Sequence[ViewMeta]) -> Strided | None:
        """Return a placeholder with the strides of that view, or None if they are not known."""
        array = stand_in(*self._layout)
        for view in views:
            if view.strided is None:
                return None
            array = view.strided(array)
        return array
