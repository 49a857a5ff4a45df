"""The methods of a tensor in the graph: ``requires_grad``, ``grad``, ``backward`` and others."""

from __future__ import annotations

from typing import Any

from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.autograd_meta import BaseRequiresGrad, flag_of_views, view_of
from opdispatch.autograd.hooks import RetainedGrad
from opdispatch.autograd.inference_tensor import is_inference
from opdispatch.autograd.node import ACCUMULATED, Hook, HookHandle, Node
from opdispatch.autograd.variable import (
    AccumulateGrad,
    Variable,
    check_differentiable,
    facts_of,
    grad_fn_of,
    meta_of,
    set_flag_of_views,
    version_of,
    wanted_edge_of,
)
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import is_inference_mode_enabled


class VariableMethods(Variable):
    """Base of ``Tensor`` with the public autograd attributes and methods."""

    __slots__ = ()

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded for it.

        Setting it raises AutogradError unless the tensor is a leaf of a floating-point or complex
        dtype.
        """
        return bool(self.requires_grad_flag)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if isinstance(self.array, LevelArray):
            raise AutogradError(
                "requires_grad cannot be changed within a function that is transformed",
                hint="use opdispatch.func.grad for the part to differentiate",
            )
        if not self.is_leaf:
            if value:
                return
            raise AutogradError(
                "requires_grad can only be changed of a leaf, and this tensor was made by "
                f"{self.grad_fn}",
                hint="use detach() for a tensor without history",
            )
        check_differentiable(self.array.dtype, value)
        if value and self.is_inference() and not is_inference_mode_enabled():
            raise AutogradError(
                "a tensor that was made in inference mode cannot require gradients outside of it",
                hint="make a copy of it",
            )
        flag: bool | BaseRequiresGrad = bool(value)
        if value and self.autograd_meta is not None:
            set_flag_of_views(self.autograd_meta)
        elif (view := view_of(self)) is not None and not view.base.requires_grad_flag:
            flag = flag_of_views(view.base.autograd_meta)
        self.requires_grad_flag = flag  # type: ignore[misc]  # a slot of Tensor

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set ``requires_grad``; return the tensor."""
        self.requires_grad = requires_grad
        return self

    def is_inference(self) -> bool:
        """Return whether the tensor was created in inference mode.

        Such a tensor has no version and cannot be part of a graph.
        """
        return is_inference(self)

    @property
    def grad_fn(self) -> Node | None:
        """The node that created the tensor, or None for a leaf."""
        return grad_fn_of(self)

    @property
    def is_leaf(self) -> bool:
        """Whether the tensor is a leaf: not the result of a recorded call."""
        return grad_fn_of(self) is None

    @property
    def grad(self) -> Any:
        """Gradient accumulated by ``backward``: a tensor, or None. Can be set."""
        return None if self.autograd_meta is None else self.autograd_meta.grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            if not isinstance(value, Variable):
                raise AutogradError(f"grad is a Tensor or None, not {type(value).__name__}")
            mine, given = facts_of(self), facts_of(value)
            if mine != given:
                raise AutogradError(
                    f"a gradient of shape {list(given[0])} and type {given[1]} on {given[2]} was "
                    f"given to a tensor of shape {list(mine[0])} and type {mine[1]} on {mine[2]}"
                )
        meta_of(self).grad = value

    @property
    def _base(self) -> Any:
        """The base that this tensor is a view of, or None if it is not a view."""
        view = view_of(self)
        return None if view is None else view.base

    def _is_view(self) -> bool:
        """Return whether it has a ``_base``."""
        return self._base is not None

    @property
    def _version(self) -> int:
        """Number of in-place writes by operators whose schema declares them."""
        return version_of(self)

    def retain_grad(self) -> None:
        """Make ``backward`` accumulate in ``grad`` for this non-leaf tensor, too.

        The gradient is retained after all hooks. Raises AutogradError if it does not require
        gradients.
        """
        if not self.requires_grad:
            raise AutogradError(
                "retain_grad was called on a tensor that does not require gradients"
            )
        meta = meta_of(self)
        if self.grad_fn is None or meta.retained is not None:
            return
        assert meta.edge is not None
        node, number = meta.edge
        meta.retained = node.add_hook(number, RetainedGrad(self))

    @property
    def retains_grad(self) -> bool:
        """Whether ``retain_grad`` was called on this non-leaf tensor."""
        return self.autograd_meta is not None and self.autograd_meta.retained is not None

    def register_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(grad)`` in each backward pass; a result other than None replaces the
        gradient.

        The handle's ``remove`` removes the hook. Raises AutogradError if the tensor does not
        require gradients.
        """
        edge = wanted_edge_of(self)
        if edge is None:
            raise AutogradError("a hook was given to a tensor that requires no gradient")
        node, number = edge
        return HookHandle(node, node.add_hook(number, hook))

    def register_post_accumulate_grad_hook(self, hook: Hook) -> HookHandle:
        """Call ``hook(tensor)`` after ``backward`` has accumulated in ``grad`` of this leaf.

        The handle's ``remove`` removes the hook. Raises AutogradError unless this is a leaf that
        requires gradients.
        """
        edge = wanted_edge_of(self)
        if edge is None:
            raise AutogradError("a hook was given to a tensor that requires no gradient")
        node, _ = edge
        if not isinstance(node, AccumulateGrad):
            raise AutogradError(
                "a hook for what was added up was given to a tensor that is not a leaf, made by "
                f"{node}",
                hint="use register_hook",
            )
        return HookHandle(node, node.add_hook(ACCUMULATED, hook))

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Accumulate the gradients of this tensor in ``grad`` of the leaves, or only of ``inputs``.

        See ``opdispatch.autograd.backward``.
        """
        from opdispatch.autograd.engine import backward

        if isinstance(self.array, LevelArray):
            raise AutogradError(
                "backward cannot be called within a function that is transformed: there is no leaf "
                "whose grad it could add to",
                hint="use opdispatch.func.grad",
            )
        backward(self, gradient, retain_graph, create_graph, inputs)
