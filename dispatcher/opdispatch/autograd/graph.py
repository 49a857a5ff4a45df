"""The graph for those who look at it: saved tensors on their way in and out, and edges.

Mirrors ``torch/autograd/graph.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from opdispatch.autograd.node import Node
from opdispatch.autograd.variable import Variable, counter_of, edge_of
from opdispatch.autograd.watch import (
    GRAPH_WATCH,
    GraphWatch,
    SavedTensorHooks,
    change_watch,
)
from opdispatch.errors import AutogradError

__all__ = [
    "GradientEdge",
    "Node",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "save_on_cpu",
    "saved_tensors_hooks",
]


class saved_tensors_hooks:  # noqa: N801 - PyTorch's name
    """A block in which tensors saved for the backward pass go through two functions.

    ``pack(tensor)`` returns what is kept in its place, and ``unpack`` of that a tensor of the same
    elements, whenever it is used. The innermost block is the one that counts. Tensors that are
    packed are not checked for writes: what ``unpack`` returns is what is used. Raises AutogradError
    where a ``pack`` writes to its tensor, and TransformError in functions that are transformed. As
    ``torch.autograd.graph.saved_tensors_hooks``.
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        for each in (pack_hook, unpack_hook):
            if not callable(each):
                raise AutogradError(
                    f"a hook for saved tensors is a function, not {type(each).__name__}"
                )
        self._hooks = SavedTensorHooks(pack_hook, unpack_hook)
        self._before: list[GraphWatch] = []

    def __enter__(self) -> Self:
        if (refusal := GRAPH_WATCH.get().refusal) is not None:
            raise AutogradError(refusal)
        self._before.append(change_watch(hooks=self._hooks))
        return self

    def __exit__(self, *exc: object) -> None:
        change_watch(hooks=self._before.pop().hooks)


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """A block in which tensors saved for the backward pass are kept in host memory.

    They go back to the device where they were when they are used. Those that are there already are
    kept as they are.
    """

    def __init__(self) -> None:
        super().__init__(_on_cpu, _on_device)


def _on_cpu(tensor: Any) -> tuple[str, Any]:
    return tensor.device, tensor.detach().to("cpu")


def _on_device(packed: tuple[str, Any]) -> Any:
    device, tensor = packed
    return tensor.to(device)


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Make ``saved_tensors_hooks`` raise AutogradError with that message in the block.

    So does the block itself, within such hooks.
    """
    if GRAPH_WATCH.get().hooks is not None:
        raise AutogradError(error_message)
    before = change_watch(refusal=error_message)
    try:
        yield
    finally:
        change_watch(refusal=before.refusal)


class GradientEdge(NamedTuple):
    """Where the gradient of a tensor goes: a node, and which of its results it is of."""

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Any) -> GradientEdge:
    """Return the gradient edge of a tensor.

    Raises AutogradError for one that requires no gradient.
    """
    edge = edge_of(tensor) if isinstance(tensor, Variable) else None
    if edge is None:
        raise AutogradError("a gradient edge is that of a tensor which requires a gradient")
    return GradientEdge(*edge)


def increment_version(tensor: Any) -> None:
    """Count up the version of a tensor, or of several, whose elements were written to.

    For writes that no operator has made. Raises AutogradError.
    """
    for each in [tensor] if isinstance(tensor, Variable) else tensor:
        if not isinstance(each, Variable):
            raise AutogradError(f"increment_version takes tensors, not {type(each).__name__}")
        counter_of(each).value += 1
