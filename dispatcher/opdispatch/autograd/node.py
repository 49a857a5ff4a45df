"""Nodes of the autograd graph: each maps gradients of a call's results to those of its
arguments."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from opdispatch.autograd.recording_state import WATCHED, note_made

if TYPE_CHECKING:
    import numpy as np

    from opdispatch.autograd.recording_state import MadeAt, SavedTensorHooks

next_number = itertools.count(1).__next__  # atomic: a single operation under the GIL
"""The next node's ``number``."""

Facts: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], str]"
"""Metadata that a gradient must match: shape, dtype and device of its tensor."""


Edge: TypeAlias = "tuple[Node, int]"
"""Target of a gradient: a node and the index of its result."""
Gradients: TypeAlias = Sequence[Any]
"""Tensors, with None for zeros."""
Hook: TypeAlias = Callable[..., Any]
"""Called with a gradient; a result other than None replaces it."""


BEFORE = -1
"""Index of hooks called with all gradients before ``apply``."""
AFTER = -2
"""Index of hooks called with the results and the arguments of ``apply``."""
ACCUMULATED = -3
"""Index of hooks called with a leaf after its gradient was accumulated."""


class Origin(NamedTuple):
    """Identity of a value that is passed between processes; see Note [Histories elsewhere]."""

    name: bytes
    """Name of the value, unique across processes."""
    place: str
    """Description of the process it came from; empty if it was made in this one."""


class RegisteredHook(NamedTuple):
    """A registered hook: the index of the result whose gradient it gets, or one of the kinds
    above."""

    number: int
    hook: Hook


class LastHook(ABC):
    """A hook that runs after all other hooks of a tensor."""

    @abstractmethod
    def __call__(self, grad: Any) -> None:
        """Process the gradient."""


class Node(ABC):
    """A differentiable call in the graph.

    Nodes are numbered in order of creation, and edges lead to earlier nodes. In descending order of
    numbers, all gradients of a node are therefore complete before it runs.
    """

    # Class attributes as defaults, not slots: few nodes set them.
    hooks: list[RegisteredHook] | None = None
    num_results = 1
    made_at: MadeAt | None = None
    """Traceback of the forward call, if anomaly detection was enabled."""
    origin: Origin | None = None
    """Set where the history of a value from another process begins."""

    def __init__(
        self, edges: Sequence[Edge | None], facts: Sequence[Facts | None], num_results: int = 1
    ) -> None:
        self.edges = edges
        """One edge for each tensor argument; None if its gradient is not needed."""
        self.facts = facts
        """Metadata of the same tensors."""
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
        """Return the gradients of the input tensors, one for each edge; None stands for zeros."""

    def release(self) -> None:  # noqa: B027 - most nodes keep nothing
        """Release the values saved for ``apply``, which raises AutogradError afterwards."""

    def pack_saved(self, hooks: SavedTensorHooks) -> None:  # noqa: B027 - as above
        """Pack the saved tensors by ``hooks``."""

    def add_hook(self, number: int, hook: Hook) -> RegisteredHook:
        """Call ``hook`` with the gradient of one of its results before ``apply``."""
        added = RegisteredHook(number, hook)
        # The sort is stable: all other hooks keep their order.
        self.hooks = sorted(
            [*(self.hooks or []), added], key=lambda each: isinstance(each.hook, LastHook)
        )
        return added

    def remove_hook(self, registered: RegisteredHook) -> None:
        """Undo ``add_hook``. Idempotent."""
        self.hooks = [each for each in self.hooks or [] if each is not registered] or None

    def register_prehook(self, hook: Hook) -> HookHandle:
        """Call ``hook(grad_outputs)`` with the gradients of its results before the node runs.

        ``grad_outputs`` is a tuple with None for zeros; a result other than None replaces it.
        """
        return HookHandle(self, self.add_hook(BEFORE, hook))

    def register_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(grad_inputs, grad_outputs)`` after the node has run.

        Both are tuples; a result other than None replaces ``grad_inputs``.
        """
        return HookHandle(self, self.add_hook(AFTER, hook))

    def __repr__(self) -> str:
        return f"<{self.name}>"


class HookHandle:
    """Handle of a registered hook. As a context manager, it removes the hook on exit."""

    def __init__(self, node: Node, registered: RegisteredHook) -> None:
        self._node, self._registered = node, registered

    def remove(self) -> None:
        """Remove the hook. Idempotent."""
        self._node.remove_hook(self._registered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
