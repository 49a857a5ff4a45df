"""The elements that a base and its views share, and what was written to them since.

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
            """Return a block for calls of values: below the level, where it is entered."""


class FunctionalStorage:
    """A base's value, and the writes that are to be applied to it: not before it is read.

    Of one level, and for one thread at a time.
    """

    __slots__ = ("_layout", "_updates", "base", "generation", "level")

    def __init__(self, base: Any, level: StorageLevel) -> None:
        self.base = base
        self.level = level
        self.generation = 0
        """How many writes there were. A tensor of an older one is out of date."""
        self._updates: list[tuple[tuple[ViewMeta, ...], Any]] = []
        # As it was at first: a write changes no strides.
        array = getattr(base, "array", base)
        self._layout = (tuple(array.shape), array.dtype, getattr(array, "strides", None))

    def add_update(self, views: tuple[ViewMeta, ...], value: Any) -> None:
        """Record that the view that ``views`` make of the base has become ``value``."""
        self._updates.append((views, value))
        self.generation += 1

    def apply_updates(self) -> None:
        """Make the base what the writes have made of it. To be called below the level."""
        while self._updates:
            views, value = self._updates[0]
            self.base = scatter(self.base, views, value)
            del self._updates[0]

    def strided(self, views: Sequence[ViewMeta]) -> Strided | None:
        """Return a placeholder with the strides of such a view, where there are views."""
        array = stand_in(*self._layout)
        for view in views:
            if view.strided is None:
                return None
            array = view.strided(array)
        return array
