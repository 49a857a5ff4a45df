"""The autograd part of a tensor: PyTorch's ``torch::autograd::Variable``.

Note [Versions]
    Each in-place write increments a tensor's version. All tensors that share memory (a base, its
    views, results of ``detach``) share one ``VersionCounter``, created with the second of them. A
    tensor saved for the backward pass is stored with its version.

Note [Views]
    A differentiable view stores its base and the calls that make it from the base. A write to
    either changes the history of the base: a write through the view becomes a ``CopySlices`` node
    of the base, and every view recomputes its ``grad_fn`` by replaying its calls on the base's new
    history. The views of a base that does not require gradients share one flag,
    ``BaseRequiresGrad``, which the base sets when it begins to require them.

``torch/csrc/autograd/{variable,VariableTypeUtils}.h``
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from opdispatch import arrays
from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.autograd_meta import (
    MADE_IN_FUNCTION,
    MADE_UNDER_NO_GRAD,
    AutogradMeta,
    BaseRequiresGrad,
    DifferentiableViewMeta,
    VersionCounter,
    view_of,
)
from opdispatch.autograd.node import ACCUMULATED, Edge, Facts, Node
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import is_grad_enabled
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE
from opdispatch.local_state.tracing_state import is_traced

DIFFERENTIABLE_KINDS = "fcV"
"""NumPy dtype kinds that can require gradients; V includes those of ml_dtypes."""


def meta_of(tensor: Any) -> AutogradMeta:
    """Return a tensor's autograd metadata, created if it has none."""
    meta: AutogradMeta | None = tensor.autograd_meta
    if meta is None:
        meta = tensor.autograd_meta = AutogradMeta()
    return meta


def version_of(tensor: Any) -> int:
    """Return the version of a tensor: the number of writes to its elements."""
    meta = tensor.autograd_meta
    return 0 if meta is None or meta.counter is None else meta.counter.value


def counter_of(tensor: Any) -> VersionCounter:
    """Return a tensor's version counter, created if it has none."""
    meta: AutogradMeta | None = tensor.autograd_meta
    if meta is None:
        meta = tensor.autograd_meta = AutogradMeta()
    counter = meta.counter
    if counter is None:
        counter = meta.counter = VersionCounter()
    return counter


def facts_of(tensor: Any) -> Facts:
    """Return the shape, dtype and device that a gradient of it must match."""
    array = tensor.array
    device = "cpu" if type(array) is np.ndarray else arrays.device_of(array)
    return array.shape, array.dtype, device


def edge_of(tensor: Any) -> Edge | None:
    """Return the edge that its gradient flows to, or None if it does not require gradients."""
    if not tensor.requires_grad_flag:
        return None
    meta: AutogradMeta | None = tensor.autograd_meta
    if meta is None:
        meta = tensor.autograd_meta = AutogradMeta()
    elif type(meta) is DifferentiableViewMeta:
        renew_history(tensor)
    edge = meta.edge
    if type(tensor.requires_grad_flag) is BaseRequiresGrad:  # none arrives here
        return None if edge is None or type(edge[0]) is AccumulateGrad else edge
    if edge is None:
        edge = meta.edge = (AccumulateGrad(tensor), 0)
    return edge


def grad_fn_of(tensor: Any) -> Node | None:
    """Return the node that made a tensor; None for a leaf."""
    meta: AutogradMeta | None = tensor.autograd_meta
    if meta is None:
        return None
    if type(meta) is DifferentiableViewMeta:
        renew_history(tensor)
    node = None if meta.edge is None else meta.edge[0]
    return None if type(node) is AccumulateGrad else node


def renew_history(tensor: Any) -> None:
    """Recompute the history of a view if the history of its base has changed.

    See Note [Views].
    """
    view = view_of(tensor)
    if view is None or view.version == version_of(view.base):
        return
    node = None if view.edge is None else view.edge[0]
    has_node = node is not None and type(node) is not AccumulateGrad
    if has_node or view.base.requires_grad or view.made_by == MADE_IN_FUNCTION:
        if view.made_by in (MADE_UNDER_NO_GRAD, MADE_IN_FUNCTION):
            raise AutogradError(
                f"a view that {view.made_by} cannot be used where gradients are recorded: its "
                "base, or another view of that, was written to",
                hint="make the view anew",
            )
        before, view.edge = view.edge, (DifferentiableViewMeta.make_node(view), 0)
        move_retained(view, before)
        view.version = version_of(view.base)
        tensor.requires_grad_flag = True


def move_retained(meta: AutogradMeta, before: Edge | None) -> None:
    """Move the hook of ``retain_grad`` from the previous history to the current one."""
    if meta.retained is not None and before is not None and meta.edge is not None:
        before[0].remove_hook(meta.retained)
        node, number = meta.edge
        meta.retained = node.add_hook(number, meta.retained.hook)


class AccumulateGrad(Node):
    """Node of a leaf: accumulates gradients in the leaf's ``grad``.

    The tensor owns the node, which has only a weak reference to it: nothing could read the gradient
    of a tensor that is gone.
    """

    def __init__(self, variable: Any) -> None:
        super().__init__((), ())
        self._variable = weakref.ref(variable)

    @property
    def name(self) -> str:
        """Its PyTorch name."""
        return "AccumulateGrad"

    @property
    def variable(self) -> Any:
        """The leaf tensor, or None if it has been freed."""
        return self._variable()

    def apply(self, grads: list[Any]) -> tuple[()]:
        """Accumulate the gradient, unless the tensor no longer requires gradients.

        Raises AutogradError if the tensor is no longer a leaf because of an in-place write.
        """
        variable = self._variable()
        if variable is not None and variable.requires_grad_flag:
            if (node := grad_fn_of(variable)) is not None:
                raise AutogradError(
                    f"a gradient arrives at a tensor that was a leaf, and is made by {node} since "
                    "it, or what it is a view of, was written to",
                    hint="write to a copy",
                )
            accumulate_grad(variable, grads[0], keeps_history=is_grad_enabled())
            for each in self.hooks or ():
                if each.number == ACCUMULATED:
                    each.hook(variable)
        return ()


def wanted_edge_of(tensor: Any) -> Edge | None:
    """Return ``edge_of`` a tensor; for a view that receives no gradient itself, the edge it would
    have."""
    edge = edge_of(tensor)
    if edge is None and tensor.requires_grad_flag:
        meta = meta_of(tensor)
        if meta.edge is None:
            meta.edge = (AccumulateGrad(tensor), 0)
        edge = meta.edge
    return edge


def accumulate_grad(variable: Any, gradient: Any, *, keeps_history: bool) -> None:
    """Add a gradient to ``grad``.

    The first gradient is copied, since other nodes may hold the same tensor. In grad mode (with
    ``create_graph``), later gradients are added out of place; otherwise they are added in place,
    and ``grad`` remains the same tensor with its history.
    """
    meta = meta_of(variable)
    if meta.grad is None:
        has_history = keeps_history and gradient.requires_grad
        meta.grad = +gradient if has_history else copy_of(gradient)
    elif keeps_history:
        meta.grad = meta.grad + gradient
    elif not _add_in_place(meta.grad, gradient):
        meta.grad[...] = meta.grad + gradient


def _add_in_place(written: Any, gradient: Any) -> bool:
    """Add in place to a plain CPU tensor if no mode, trace or transform is active; return whether
    it did."""
    array, more = written.array, gradient.array
    if not (
        type(array) is np.ndarray
        and type(more) is np.ndarray
        and type(written) is Variable.plain_class
        and type(gradient) is Variable.plain_class
        and written.key_bits == gradient.key_bits
        and array.dtype is more.dtype
        and array.dtype.char in "fdFD"
        and array.shape == more.shape
        and array.flags.c_contiguous  # so that no element overlaps another
        and array.flags.writeable
        and LOCAL_STATE.get() is DEFAULT_STATE
        and not is_traced(written)
        and not is_traced(gradient)
    ):
        return False
    version = counter_of(written)
    after = version.value + 1  # read before the write, since inference tensors have no version
    np.add(array, more, out=array)
    version.value = after
    return True


def set_flag_of_views(meta: AutogradMeta) -> None:
    """Set ``requires_grad`` of all views of a tensor that has begun to require gradients."""
    if meta.flag_of_views is not None:
        meta.flag_of_views.append(True)
        meta.flag_of_views = None


def copy_of(tensor: Any) -> Any:
    """Return a tensor that shares the elements but has no history."""
    if isinstance(tensor.array, LevelArray | arrays.FakeArray) or is_traced(tensor):
        return +tensor  # by the operator, so that transform levels and traces see it
    return tensor._of(arrays.copy_of(tensor.array))


class Variable:
    """Base of ``Tensor`` with its autograd state; ``VariableMethods`` has the public methods.

    ``requires_grad_flag`` was set by the user or by the call that made the tensor.
    """

    __slots__ = ()

    autograd_meta: AutogradMeta | None
    requires_grad_flag: bool | BaseRequiresGrad
    array: Any
    if TYPE_CHECKING:  # as in VariableMethods

        @property
        def requires_grad(self) -> bool:
            """Whether gradients are recorded for it."""

        @property
        def is_leaf(self) -> bool:
            """Whether it is a leaf: not the result of a recorded call."""

    plain_class: ClassVar[Callable[[Any], Any]]
    """The class ``Tensor``; set by its module to avoid an import cycle."""


def check_differentiable(dtype: Any, requires_grad: bool) -> None:
    """Raise AutogradError if ``requires_grad`` is set and the dtype cannot require gradients."""
    if requires_grad and dtype.kind not in DIFFERENTIABLE_KINDS:
        raise AutogradError(
            "only tensors of floating-point and complex types can require gradients, and this one "
            f"is of {dtype}"
        )
