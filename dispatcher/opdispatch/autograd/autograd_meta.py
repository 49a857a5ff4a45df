"""Autograd metadata of tensors and views. See Note [Views] in ``variable.py``.

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
"""The view calls that make a view from its base, as a linked list.

An entry has the entry of the preceding view or None, the function of the call, and its other
arguments."""


def replay(steps: Replay | None, base: Any) -> Any:
    """Apply the view calls to another base."""
    calls = []
    while steps is not None:
        outer, *call = steps
        calls.append(call)
        steps = outer
    for make, *arguments in reversed(calls):
        base = make(base, *arguments)
    return base


class VersionCounter:
    """Number of in-place writes to a storage."""

    value = 0


class BaseRequiresGrad(list[bool]):
    """Shared ``requires_grad_flag`` of the views of a base that did not require gradients.

    It is false while the list is empty. Views share one object, so the base can set the flag of all
    its views without keeping references to them.
    """

    __slots__ = ()


class AutogradMeta:
    """Autograd state of a tensor that is part of a graph, has been written to, or is a view."""

    # Class attributes as defaults, not slots: few tensors set more than one or two.
    edge: Edge | None = None
    """Target of its gradient: the node that made it, or ``AccumulateGrad`` for a leaf."""
    grad: Any = None
    counter: VersionCounter | None = None
    flag_of_views: BaseRequiresGrad | None = None
    """Shared flag of the views made since the tensor last began to require gradients."""
    retained: RegisteredHook | None = None
    """The hook registered by ``retain_grad``."""


class DifferentiableViewMeta(AutogradMeta):
    """Autograd state of a view, with its base and the calls that make it from the base."""

    base: Any
    replay: Replay | None
    version: int
    """Version of the base when the view's ``grad_fn`` was computed."""
    made_by = ""
    """Reason why it cannot be written to in grad mode; empty if it can."""

    make_node: ClassVar[Callable[[DifferentiableViewMeta], Node]]
    """Function that makes the node of a view after a write to its base; set by
    ``view_nodes.py``."""


def view_of(tensor: Any) -> DifferentiableViewMeta | None:
    """Return the autograd metadata of a view; None for any other tensor."""
    meta = tensor.autograd_meta
    return meta if type(meta) is DifferentiableViewMeta else None


def make_view(
    tensor: Any, base: Any, replay: Replay | None, made_by: str
) -> DifferentiableViewMeta:
    """Make a tensor a view of ``base``, which is not itself a view and has a version counter."""
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
    """Return the shared flag for views of a base that does not require gradients."""
    flag = meta.flag_of_views
    if flag is None:
        flag = meta.flag_of_views = BaseRequiresGrad()
    return flag
