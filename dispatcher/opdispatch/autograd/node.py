"""A step of the backward pass: from the gradients of a call's results to those of its arguments."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from opdispatch.autograd.watch import WATCHED, note_made

if TYPE_CHECKING:
    import numpy as np

    from opdispatch.autograd.watch import MadeAt, SavedTensorHooks

next_number = itertools.count(1).__next__  # one operation under the GIL
"""The next node's ``number``."""

Facts: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], str]"
"""Facts that a gradient must fit: shape, type and device of its tensor."""


Edge: TypeAlias = "tuple[Node, int]"
"""Where a gradient goes: a node, and which of its results it is of."""
Gradients: TypeAlias = Sequence[Any]
"""Tensors, with None for zeros."""
Hook: TypeAlias = Callable[..., Any]
"""Is given a gradient; what it returns, unless that is None, replaces it."""


BEFORE = -1
"""The number of a hook that sees all gradients, before ``apply`` does."""
AFTER = -2
"""Of one that sees what ``apply`` returned, and what that was given."""
ACCUMULATED = -3
"""Of one that sees a leaf, whose ``grad`` has been added to."""


class Origin(NamedTuple):
    """Of a value that processes hand to each other. See Note [Histories elsewhere]."""

    name: bytes
    """Name of the value among processes."""
    place: str
    """Where it came from, in words; empty: it was made here."""


class RegisteredHook(NamedTuple):
    """A hook of a node: of the gradient of the result with that number, or of another kind."""

    number: int
    hook: Hook


class LastHook(ABC):
    """A hook that sees a gradient as all other hooks of a tensor have left it."""

    @abstractmethod
    def __call__(self, grad: Any) -> None:
        """Take the gradient."""


class Node(ABC):
    """A differentiated call in the graph.

    Nodes are numbered as they are made, and an edge goes from a node to an earlier one: so
    descending numbers are an order in which every gradient is complete when it is used.
    """

    # Of most nodes, these stay as they are: so there are no slots.
    hooks: list[RegisteredHook] | None = None
    num_results = 1
    made_at: MadeAt | None = None
    """Where it was made, if anomalies are detected."""
    origin: Origin | None = None
    """Of where the way of such a value begins."""

    def __init__(
        self, edges: Sequence[Edge | None], facts: Sequence[Facts | None], num_results: int = 1
    ) -> None:
        self.edges = edges
        """One for each tensor that was given; None where no gradient is wanted."""
        self.facts = facts
        """Of the same tensors."""
        self.num_results = num_results
        self.number = next_number()
        if WATCHED:
            note_made(self)

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in messages: ``AddBackward``."""

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The edges as PyTorch shows them."""
        return tuple((None, 0) if edge is None else edge for edge in self.edges)

    @abstractmethod
    def apply(self, grads: list[Any]) -> Gradients:
        """Return the gradients of the input tensors, one for each edge."""

    def release(self) -> None:  # noqa: B027 - most nodes keep nothing
        """Release the values saved for ``apply``, which raises AutogradError from now on."""

    def pack_saved(self, hooks: SavedTensorHooks) -> None:  # noqa: B027 - as above
        """Pack the saved tensors by ``hooks``."""

    def add_hook(self, number: int, hook: Hook) -> RegisteredHook:
        """Call ``hook`` with the gradient of one of its results before ``apply``."""
        added = RegisteredHook(number, hook)
        # Sorting is stable: all others keep their order.
        self.hooks = sorted(
            [*(self.hooks or []), added], key=lambda each: isinstance(each.hook, LastHook)
        )
        return added

    def remove_hook(self, registered: RegisteredHook) -> None:
        """Undo ``add_hook``. Idempotent."""
        self.hooks = [each for each in self.hooks or [] if each is not registered] or None

    def register_prehook(self, hook: Hook) -> HookHandle:
        """Call ``hook(grad_outputs)`` with the gradients of its results before the node runs.

        They are a tuple, with None for zeros; what it returns replaces them. As in PyTorch.
        """
        return HookHandle(self, self.add_hook(BEFORE, hook))

    def register_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run.

        Both are tuples; what it returns replaces the first. As in PyTorch.
        """
        return HookHandle(self, self.add_hook(AFTER, hook))

    def __repr__(self) -> str:
        return f"<{self.name}>"


class HookHandle:
    """Handle of a registered hook. As a block, it undoes the registration at the end."""

    def __init__(self, node: Node, registered: RegisteredHook) -> None:
        self._node, self._registered = node, registered

    def remove(self) -> None:
        """Undo the registration. Idempotent."""
        self._node.remove_hook(self._registered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
