"""A step of the way back: from the gradients of a call's results to those of its arguments."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

next_number = itertools.count(1).__next__  # one operation under the GIL
"""The next node's ``number``."""

Facts: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any]]"
"""What a gradient must be like: shape and type of the tensor that it is of."""


Edge: TypeAlias = "tuple[Node, int]"
"""Where a gradient goes: a node, and which of its results it is of."""
Gradients: TypeAlias = Sequence[Any]
"""Tensors, with None for zeros."""
Hook: TypeAlias = Callable[[Any], Any]
"""Is given a gradient; what it returns, unless that is None, replaces it."""


class Node(ABC):
    """What a call that is differentiated leaves behind.

    Nodes are numbered as they are made, and an edge goes from a node to an earlier one: so
    descending numbers are an order in which every gradient is complete when it is used.
    """

    # Of most nodes, these stay as they are: so there are no slots.
    hooks: list[tuple[int, Hook]] | None = None
    num_results = 1

    def __init__(
        self, edges: Sequence[Edge | None], facts: Sequence[Facts | None], num_results: int = 1
    ) -> None:
        self.edges = edges
        """One for each tensor that was given; None where no gradient is wanted."""
        self.facts = facts
        """Of the same tensors."""
        self.num_results = num_results
        self.number = next_number()

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it: ``AddBackward``."""

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The edges as PyTorch shows them."""
        return tuple((None, 0) if edge is None else edge for edge in self.edges)

    @abstractmethod
    def apply(self, grads: list[Any]) -> Gradients:
        """The gradients of the tensors that were given, one for each edge."""

    def release(self) -> None:  # noqa: B027 - most nodes keep nothing
        """Lets go of what was kept for ``apply``, which raises AutogradError from now on."""

    def add_hook(self, number: int, hook: Hook) -> None:
        """Has ``hook`` see the gradient of one of its results before ``apply`` does."""
        self.hooks = [*(self.hooks or []), (number, hook)]

    def remove_hook(self, number: int, hook: Hook) -> None:
        """Undoes ``add_hook``."""
        self.hooks = [each for each in self.hooks or [] if each != (number, hook)] or None

    def __repr__(self) -> str:
        return f"<{self.name}>"
