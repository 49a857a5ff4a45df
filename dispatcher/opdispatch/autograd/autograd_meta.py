"""Autograd metadata of tensors, and of those that are views. See Note [Views] in ``variable.py``.

Mirrors ``AutogradMeta``, ``DifferentiableViewMeta`` and ``CreationMeta`` of
``torch/csrc/autograd/variable.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from opdispatch.autograd.node import Edge, Node, RegisteredHook

MADE_UNDER_NO_GRAD = "was made under no_grad"
MADE_IN_FUNCTION = "was made by a Function"
ONE_OF_SEVERAL = "is one of several"

Replay = tuple[Any, ...]
"""How a view is made of its base: by a function of the base and of other arguments.

The replay of the view that it is a view of, or None; the function; its other arguments."""


def replay(steps: Replay | None, base: Any) -> Any:
    """Return the same view of another base."""
    calls = []
    while steps is not None:
        outer, *call = steps
        calls.append(call)
        steps = outer
    for make, *arguments in reversed(calls):
        base = make(base, *arguments)
    return base


class VersionCounter:
    """How often elements were written to."""

    value = 0


class BaseRequiresGrad(list[bool]):
    """``requires_grad_flag`` of all views of a base that required no gradients: false while empty.

    One object, so that a view is not noted in its base, and the base sets it for all its views.
    """

    __slots__ = ()


class AutogradMeta:
    """Autograd state of a tensor that is part of a graph, has been written to, or is a view."""

    # Of most tensors, most of this stays as it is: so these are not slots.
    edge: Edge | None = None
    """Where its gradient goes: to the node that made it; that of a leaf to ``AccumulateGrad``."""
    grad: Any = None
    counter: VersionCounter | None = None
    flag_of_views: BaseRequiresGrad | None = None
    """That of the views made since it last came to require gradients."""
    retained: RegisteredHook | None = None
    """Hook that ``retain_grad`` has registered."""


class DifferentiableViewMeta(AutogradMeta):
    """Autograd state of a view: also its base, and how it is made of it."""

    base: Any
    replay: Replay | None
    version: int
    """That of the base when the view's ``grad_fn`` was found."""
    made_by = ""
    """Why it must not be written to where gradients are recorded; empty: it may be."""

    make_node: ClassVar[Callable[[DifferentiableViewMeta], Node]]
    """Makes the node of a view whose base was written to: a slot that ``view_nodes.py`` fills."""


def view_of(tensor: Any) -> DifferentiableViewMeta | None:
    """Return the autograd metadata of a view; None for any other tensor."""
    meta = tensor.autograd_meta
    return meta if type(meta) is DifferentiableViewMeta else None


def make_view(
    tensor: Any, base: Any, replay: Replay | None, made_by: str
) -> DifferentiableViewMeta:
    """Make a tensor a view of a base, which is none itself and has a version counter."""
    meta = DifferentiableViewMeta()
    if tensor.autograd_meta is not None:
        vars(meta).update(vars(tensor.autograd_meta))
    meta.base, meta.replay = base, replay
    counter = base.autograd_meta.counter
    meta.counter, meta.version = counter, counter.value
    if made_by:
        meta.made_by = made_by
    tensor.autograd_meta = meta
    if not base.requires_grad_flag:
        tensor.requires_grad_flag = flag_of_views(base.autograd_meta)
    return meta


def flag_of_views(meta: AutogradMeta) -> BaseRequiresGrad:
    """Return the flag of the views of a base that requires no gradients."""
    flag = meta.flag_of_views
    if flag is None:
        flag = meta.flag_of_views = BaseRequiresGrad()
    return flag
