"""Inspection of the graph: hooks for saved tensors, and gradient edges.

Mirrors ``torch/autograd/graph.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

from opdispatch.autograd.node import Node
from opdispatch.autograd.recording_state import (
    RECORDING_STATE,
    RecordingState,
    SavedTensorHooks,
    change_recording_state,
)
from opdispatch.autograd.variable import Variable, counter_of, edge_of
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
    """Context manager that applies a pair of hooks to tensors saved for the backward pass.

    ``pack(tensor)`` returns the object to store, and ``unpack(object)`` must return a tensor with
    the same contents; it is called each time the saved tensor is used. Only the innermost block
    applies. Packed tensors are not checked for in-place writes. Raises AutogradError if ``pack``
    writes to its tensor, and TransformError within a transformed function. Equivalent to
    ``torch.autograd.graph.saved_tensors_hooks``.
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        for each in (pack_hook, unpack_hook):
            if not callable(each):
                raise AutogradError(
                    f"a hook for saved tensors must be a function, not {type(each).__name__}"
                )
        self._hooks = SavedTensorHooks(pack_hook, unpack_hook)
        self._before: list[RecordingState] = []

    def __enter__(self) -> Self:
        if (refusal := RECORDING_STATE.get().refusal) is not None:
            raise AutogradError(refusal)
        self._before.append(change_recording_state(hooks=self._hooks))
        return self

    def __exit__(self, *exc: object) -> None:
        change_recording_state(hooks=self._before.pop().hooks)


class save_on_cpu(saved_tensors_hooks):  # noqa: N801 - PyTorch's name
    """Context manager that keeps tensors saved for the backward pass in host memory.

    They are copied back to their device when they are used. Tensors on the CPU are stored
    unchanged.
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
    """Disable ``saved_tensors_hooks`` in a block: it raises AutogradError with the given message.

    The block itself raises if such hooks are active.
    """
    if RECORDING_STATE.get().hooks is not None:
        raise AutogradError(error_message)
    before = change_recording_state(refusal=error_message)
    try:
        yield
    finally:
        change_recording_state(refusal=before.refusal)


class GradientEdge(NamedTuple):
    """Target of a tensor's gradient: a node and the index of its result."""

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Any) -> GradientEdge:
    """Return the gradient edge of a tensor.

    Raises AutogradError if it does not require gradients.
    """
    edge = edge_of(tensor) if isinstance(tensor, Variable) else None
    if edge is None:
        raise AutogradError("get_gradient_edge was given a tensor that does not require gradients")
    return GradientEdge(*edge)


def increment_version(tensor: Any) -> None:
    """Increment the version of one or several tensors after a write that bypassed operators.

    Raises AutogradError for anything but tensors.
    """
    for each in [tensor] if isinstance(tensor, Variable) else tensor:
        if not isinstance(each, Variable):
            raise AutogradError(f"increment_version takes tensors, not {type(each).__name__}")
        counter_of(each).value += 1
