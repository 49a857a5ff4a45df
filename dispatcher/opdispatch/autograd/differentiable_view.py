"""The link from a view to its base. See Note [Views] in ``variable.py``.

Mirrors ``DifferentiableViewMeta`` and ``CreationMeta`` of ``torch/csrc/autograd/variable.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from opdispatch.autograd.node import Node

MADE_UNDER_NO_GRAD = "was made under no_grad"
MADE_IN_FUNCTION = "was made by a Function"

Replay = tuple[Callable[..., Any], tuple[Any, ...]]
"""A call that makes a view: the function of the base and of these other arguments."""


class ViewOf:
    """How a view is made of its base: calls of operators, one after the other."""

    __slots__ = ("base", "made_by", "replays", "version")

    make_node: ClassVar[Callable[[ViewOf], Node]]
    """Makes the node of a view whose base was written to: a slot that ``view_nodes.py`` fills."""

    def __init__(
        self,
        base: Any,
        replays: tuple[Replay, ...],
        made_by: str,
        version: int,
    ) -> None:
        self.base = base
        self.replays = replays
        self.made_by = made_by
        """Why it must not be written to where gradients are recorded; empty: it may be."""
        self.version = version
        """That of the base when the view's ``grad_fn`` was found."""

    def replay(self, base: Any) -> Any:
        """Return the same view of another base."""
        for make, arguments in self.replays:
            base = make(base, *arguments)
        return base
