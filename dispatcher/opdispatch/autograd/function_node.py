"""Nodes of calls of a ``Function``, and nodes that end the backward pass.

Mirrors ``torch/csrc/autograd/python_function.cpp``, and ``DelayedError`` of
``torch/csrc/autograd/functions/basic_ops.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from opdispatch.autograd.node import Gradients, Node
from opdispatch.autograd.recording_state import WATCHED, note_recorded
from opdispatch.autograd.variable import Variable, edge_of, facts_of
from opdispatch.errors import AutogradError
from opdispatch.local_state.lazy_imports import array_namespace

if TYPE_CHECKING:
    from opdispatch.autograd.context import Context
    from opdispatch.autograd.recording_state import SavedTensorHooks


if TYPE_CHECKING:  # nothing at run time asks for it

    class BackwardFunction(Protocol):
        """The part of a ``Function`` that a node needs."""

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            """Return the gradients of the arguments."""


class FunctionNode(Node):
    """Node of a ``Function`` call. It also has the attributes of its context, as in PyTorch."""

    def __init__(
        self, function: type[BackwardFunction], context: Context, args: Sequence[Any]
    ) -> None:
        self._are_tensors = [isinstance(each, Variable) for each in args]
        edges = tuple(edge_of(each) if isinstance(each, Variable) else None for each in args)
        facts = tuple(
            None if edge is None else facts_of(each) for edge, each in zip(edges, args, strict=True)
        )
        super().__init__(edges, facts)
        self._function, self._context = function, context
        self._results: list[Any] = []

    @property
    def name(self) -> str:
        """Name of the node, the class's name with the suffix ``Backward`` as in PyTorch."""
        return f"{self._function.__name__}Backward"

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The saved tensors of the call. Raises AutogradError if one was written to or released."""
        return self._context.saved_of(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # reached also before the node has a context
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._context, name)

    def keep(self, results: Sequence[Any], savable: Sequence[Any]) -> None:
        """Store the metadata for zero gradients of each result, and the tensors that the context
        saves.

        ``savable`` are the results as returned by ``forward``, without arguments.
        """
        self.num_results = len(results)
        self._results = [_made_like(each) for each in results]
        self._context.keep(savable, results)
        if WATCHED:
            note_recorded(self)

    def apply(self, grads: list[Any]) -> Gradients:
        """Call ``backward``. Raises AutogradError for a wrong number or type of gradients."""
        given = [
            self._zeros(facts) if grad is None and facts is not None else grad
            for grad, facts in zip(grads, self._results, strict=True)
        ]
        found = self._context.call(self, self._function.backward, given)
        found = list(found) if isinstance(found, tuple | list) else [found]
        while len(found) > len(self.edges) and found[-1] is None:
            found.pop()
        if len(found) != len(self.edges):
            raise self._error(
                f"returned {len(found)} gradients; expected {len(self.edges)}, one for each "
                "argument"
            )
        for place, each in enumerate(found):
            if each is None:
                continue
            if not isinstance(each, Variable):
                raise self._error(
                    f"returned for argument {place} a {type(each).__name__}; expected a Tensor or "
                    "None"
                )
            if not self._are_tensors[place]:
                raise self._error(
                    f"returned a gradient for argument {place}, which is not a tensor"
                )
        return found

    def _error(self, message: str) -> AutogradError:
        return AutogradError(f"{self._function.__name__}.backward {message}")

    def _zeros(self, facts: Any) -> Any:
        if not self._context.materializes:
            return None
        shape, dtype, device = facts
        return array_namespace().zeros(shape, dtype=dtype, device=device)

    def pack_saved(self, hooks: SavedTensorHooks) -> None:
        """Pack the tensors that the context saves by ``hooks``."""
        self._context.pack_saved(hooks)

    def release(self) -> None:
        """Release the saved tensors."""
        self._context.release()


class DelayedError(Node):
    """Node that raises in the backward pass, for a value computed without a derivative."""

    def __init__(self, message: str, num_results: int) -> None:
        super().__init__((), (), num_results)
        self._message = message

    @property
    def name(self) -> str:
        """Its PyTorch name."""
        return "Error"

    def apply(self, grads: list[Any]) -> NoReturn:
        """Raise AutogradError."""
        raise AutogradError(self._message, hint="write that backward with operators alone")


def _made_like(result: Any) -> Any:
    """Return the metadata for zeros like a result, or None if it is not a Variable."""
    return facts_of(result) if isinstance(result, Variable) else None
