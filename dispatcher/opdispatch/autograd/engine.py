"""The backward pass through the graph.

Nodes run in descending order of their sequence numbers, each once, when all gradients of its
results have been accumulated (see ``Node``). The engine does not recurse, so the depth of a graph
is limited only by memory, and it releases each node as soon as the node has run.

Mirrors ``torch/csrc/autograd/engine.cpp`` and ``torch/autograd/__init__.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from opdispatch.autograd.anomaly_mode import AnomalyDetector, is_anomaly_enabled
from opdispatch.autograd.hooks import call_posthooks, call_prehooks, call_tensor_hooks
from opdispatch.autograd.node import Edge, Facts, Node
from opdispatch.autograd.recording_state import WATCHED
from opdispatch.autograd.remote_history import check_complete
from opdispatch.autograd.to_copy import gradient_on
from opdispatch.autograd.variable import AccumulateGrad, Variable, edge_of, wanted_edge_of
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, grad_mode_state, set_grad_enabled
from opdispatch.local_state.lazy_imports import array_namespace, vmap
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.local_state.observed_range import ObservedRange

_EVENT = "autograd::engine::evaluate_function: "
"""Prefix of node names in profiles, as in PyTorch."""

Tensors: TypeAlias = "Variable | Sequence[Variable]"


def backward(
    tensors: Tensors,
    grad_tensors: Variable | Sequence[Variable | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Accumulate the gradients of ``tensors`` in ``grad`` of the leaves, or only of ``inputs``.

    ``inputs`` that are not leaves retain their gradients from then on. ``grad_tensors`` are the
    gradients of ``tensors`` themselves, of the same shapes; None is allowed for tensors of one
    element. The graph is released unless ``retain_graph`` or ``create_graph`` is set; the latter
    also records the backward pass. Raises AutogradError for unsuitable tensors and errors of the
    graph. Equivalent to ``torch.autograd.backward``.
    """
    roots = _roots(_listed(tensors, "tensors of backward"), grad_tensors)
    keep = create_graph if retain_graph is None else retain_graph
    if inputs is None:
        _run(roots, {}, keep=keep, create_graph=create_graph, accumulates=True)
        return
    wanted = _listed(inputs, "inputs of backward")
    if not wanted:
        raise AutogradError("backward was given inputs=[]; omit inputs to accumulate in all leaves")
    edges = dict.fromkeys(_wanted_edge(tensor) for tensor in wanted)
    for tensor in wanted:
        tensor.retain_grad()  # retained by non-leaf tensors from now on
    captured = _run(roots, edges, keep=keep, create_graph=create_graph, accumulates=False)
    for (node, _), gradient in captured.items():
        if gradient is not None and isinstance(node, AccumulateGrad):
            with set_grad_enabled(create_graph):
                node.apply([gradient])


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Variable | Sequence[Variable | None] | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Return the gradients of ``outputs`` with respect to ``inputs``, one tensor for each input.

    An input that ``outputs`` do not depend on raises AutogradError; with ``allow_unused``, its
    gradient is None, and with ``materialize_grads`` it is zeros. With ``is_grads_batched``,
    dimension 0 of each of ``grad_outputs`` and of each result is a batch dimension, and one
    backward pass under ``vmap`` computes them all. Other arguments are those of ``backward``.
    Equivalent to ``torch.autograd.grad``.
    """
    if materialize_grads and allow_unused is False:
        raise AutogradError(
            "allow_unused=False contradicts materialize_grads=True; pass only one of them"
        )
    wanted = _listed(inputs, "inputs of grad")
    if not wanted:
        raise AutogradError("grad was given no inputs; expected at least one tensor")
    if is_grads_batched:
        given = _batched_gradients(
            _listed(outputs, "outputs of grad"), wanted, grad_outputs, retain_graph, create_graph
        )
        return _without_unused(
            given, wanted, allow_unused, materialize=materialize_grads, create_graph=create_graph
        )
    roots = _roots(_listed(outputs, "outputs of grad"), grad_outputs)
    edges = [_wanted_edge(tensor) for tensor in wanted]
    keep = create_graph if retain_graph is None else retain_graph
    captured = _run(
        roots, dict.fromkeys(edges), keep=keep, create_graph=create_graph, accumulates=False
    )
    results = tuple(captured[edge] for edge in edges)
    return _without_unused(
        results, wanted, allow_unused, materialize=materialize_grads, create_graph=create_graph
    )


def _without_unused(
    results: tuple[Any, ...],
    wanted: Sequence[Any],
    allow_unused: bool | None,
    *,
    materialize: bool,
    create_graph: bool,
) -> tuple[Any, ...]:
    """Return the gradients; raise AutogradError for unused inputs unless they are allowed."""
    if materialize:
        zeros_like = array_namespace().zeros_like
        return tuple(
            zeros_like(of.detach()).requires_grad_(create_graph) if each is None else each
            for each, of in zip(results, wanted, strict=True)
        )
    if not allow_unused and (unused := [n for n, each in enumerate(results) if each is None]):
        raise AutogradError(
            f"input {unused[0]} of grad was not used in the graph of the outputs",
            hint="with allow_unused=True its gradient is None",
        )
    return results


def _batched_gradients(
    outputs: Sequence[Any],
    wanted: Sequence[Any],
    grad_outputs: Any,
    retain_graph: bool | None,
    create_graph: bool,
) -> tuple[Any, ...]:
    """Return the gradients for a batch of ``grad_outputs``; None for unused inputs."""
    used: list[int] = []

    def back(*gradients: Any) -> tuple[Any, ...]:
        found = grad(outputs, wanted, gradients, retain_graph, create_graph, allow_unused=True)
        used[:] = [place for place, each in enumerate(found) if each is not None]
        return tuple(found[place] for place in used)

    rows = iter(vmap()(back)(*_listed(grad_outputs, "gradients")))
    by_place = {place: next(rows) for place in used}
    return tuple(by_place.get(place) for place in range(len(wanted)))


def _listed(tensors: Any, what: str) -> list[Any]:
    """Return a tensor or a sequence of tensors as a list. Raises AutogradError for anything
    else."""
    if isinstance(tensors, Variable):
        return [tensors]
    listed = list(tensors) if isinstance(tensors, Iterable) and not _is_array(tensors) else None
    if listed is None:
        raise AutogradError(
            f"the {what} are a Tensor or a sequence of such, not {type(tensors).__name__}"
        )
    for each in listed:
        if not isinstance(each, Variable) and not (each is None and what == "gradients"):
            raise AutogradError(f"the {what} are Tensors, and one of them is {_kind(each)}")
    return listed


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _wanted_edge(tensor: Any) -> Edge:
    edge = wanted_edge_of(tensor)
    if edge is None:
        raise AutogradError(
            "an input does not require gradients; set requires_grad=True before it is used"
        )
    return edge


def _roots(outputs: Sequence[Any], gradients: Any) -> list[tuple[Edge, Any]]:
    """Return the root edges of the backward pass with their gradients."""
    given = [None] * len(outputs) if gradients is None else _listed(gradients, "gradients")
    if len(given) != len(outputs):
        raise AutogradError(f"{len(given)} gradients were given for {len(outputs)} tensors")
    roots = []
    for place, (output, gradient) in enumerate(zip(outputs, given, strict=True)):
        edge = edge_of(output)
        if edge is None:
            raise AutogradError(
                f"tensor {place} does not require a gradient, and no recorded call has made it"
            )
        roots.append((edge, _root_gradient(place, output, gradient)))
    return roots


def _root_gradient(place: int, output: Any, gradient: Any) -> Any:
    if gradient is None:
        if output.size != 1:
            raise AutogradError(
                "a gradient can be left out for a tensor of one element only, and tensor "
                f"{place} has shape {list(output.shape)}"
            )
        if output.dtype.kind == "c":
            raise AutogradError(f"a gradient must be given for tensor {place}, which is complex")
        return array_namespace().ones_like(output.detach())
    if tuple(gradient.shape) != tuple(output.shape):
        raise AutogradError(
            f"gradient {place} has shape {list(gradient.shape)}, and the tensor that it is of "
            f"{list(output.shape)}"
        )
    if (gradient.dtype.kind == "c") != (output.dtype.kind == "c"):
        raise AutogradError(
            f"gradient {place} is of {gradient.dtype}, and the tensor that it is of is of "
            f"{output.dtype}: both are complex, or neither"
        )
    return gradient_on(output.device, gradient, f"gradient {place}")


def _run(
    roots: Iterable[tuple[Edge, Any]],
    captured: dict[Edge, Any],
    *,
    keep: bool,
    create_graph: bool,
    accumulates: bool,
) -> dict[Edge, Any]:
    """Run the backward pass and return the gradients accumulated at the edges in ``captured``."""
    roots = list(roots)
    needed = None if accumulates else _leading_to(captured, [node for (node, _), _ in roots])
    wanted: dict[Node, list[Edge]] = {}
    for edge in captured:
        wanted.setdefault(edge[0], []).append(edge)
    pending = _Pending()
    is_observed = LOCAL_STATE.get().observer is not None
    detector = AnomalyDetector() if WATCHED and is_anomaly_enabled() else None
    node: Node | None = None
    outer = AUTOGRAD_STATE.set(grad_mode_state(create_graph))
    try:
        pending.add([edge for edge, _ in roots], [each for _, each in roots], needed)
        while pending.order:
            node, gradients = pending.take_next()
            goes_on = needed is None or (needed[node] and type(node) is not AccumulateGrad)
            arrived = gradients
            if detector is not None:
                detector.begin(node)
            if node.hooks is not None:
                gradients = call_tensor_hooks(node, gradients)
            for edge in wanted.get(node, ()):
                # As in PyTorch, a captured gradient includes the changes of hooks only where the
                # pass ends.
                captured[edge] = (arrived if goes_on else gradients)[edge[1]]
            if not goes_on:
                continue
            if gradients[0] is None and not any(each is not None for each in gradients):
                continue
            if node.hooks is not None:
                gradients = call_prehooks(node, gradients)
            if is_observed:
                with ObservedRange(f"{_EVENT}{node.name}", "backward", gradients):
                    results = node.apply(gradients)
            else:
                results = node.apply(gradients)
            if node.hooks is not None:
                results = call_posthooks(node, results, gradients)
            if detector is not None:
                detector.check(node, results)
            if not keep:
                node.release()
            if len(results) != len(node.edges):
                raise AutogradError(
                    f"{node.name} returned {len(results)} gradients; expected {len(node.edges)}"
                )
            pending.add(node.edges, results, needed, node)
    except Exception as error:
        if detector is not None and node is not None:
            detector.explain(error, node)
        raise
    finally:
        AUTOGRAD_STATE.reset(outer)
        if detector is not None:
            detector.end()
    return captured


def _fit(node: Node, place: int, gradient: Any, facts: Facts) -> Any:
    """Reduce a gradient to the shape, dtype and device of its tensor; broadcast dimensions are
    summed.

    Like ``validate_outputs`` of PyTorch's engine, so formulas need not handle broadcasting, nor
    real or host-scalar arguments. Raises AutogradError if the shape cannot result from broadcasting
    the tensor's, or if the device differs.
    """
    shape, dtype, device = facts
    given = gradient.array
    if given.shape != shape:
        gradient = _summed_to(node, place, gradient, shape)
    if given.dtype is not dtype and given.dtype != dtype:
        xp = array_namespace()
        if given.dtype.kind == "c" and dtype.kind != "c":
            gradient = xp.real(gradient)
        if gradient.dtype != dtype:
            gradient = xp.astype(gradient, dtype)
    if type(given) is np.ndarray and device == "cpu":
        return gradient
    return gradient_on(device, gradient, f"the gradient of {node.name} for argument {place}")


def _summed_to(node: Node, place: int, gradient: Any, shape: tuple[int, ...]) -> Any:
    given = tuple(gradient.shape)
    leading = len(given) - len(shape)
    axes = [*range(leading)]
    fits = leading >= 0
    for axis, extent in enumerate(shape if fits else (), leading):
        if extent != given[axis]:
            fits = fits and extent == 1
            axes.append(axis)
    if not fits:
        raise AutogradError(
            f"{node.name} returned a gradient of shape {list(given)} for argument {place}, which "
            f"has shape {list(shape)}"
        )
    xp = array_namespace()
    if axes:
        gradient = xp.sum(gradient, axis=axes, keepdims=True, dtype=gradient.dtype)
    return xp.reshape(gradient, shape) if leading else gradient


def _leading_to(captured: dict[Edge, Any], roots: Iterable[Node]) -> dict[Node, bool]:
    """Return the nodes that lead to a captured edge, each with a flag whether the pass goes beyond
    it.

    Raises AutogradError if gradients would be incomplete.
    """
    reachable = {node.number: node for node in roots}
    stack = [*reachable.values()]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and (node := edge[0]).number not in reachable:
                reachable[node.number] = node
                stack.append(node)
    wanted = {node for node, _ in captured}
    check_complete(wanted, reachable.values())
    needed: dict[Node, bool] = {}
    for number in sorted(
        reachable
    ):  # ascending, because edges lead to lower numbers, whose result is needed first
        node = reachable[number]
        for edge in node.edges:
            if edge is not None and edge[0] in needed:
                needed[node] = True
                break
        else:
            if node in wanted:
                needed[node] = False
    return needed


class _Pending:
    """Accumulated gradients of nodes that have not run yet."""

    def __init__(self) -> None:
        self._gradients: dict[Node, list[Any]] = {}
        self.order: list[tuple[int, Node]] = []
        """Heap of the pending nodes, the highest number first."""

    def add(
        self,
        edges: Sequence[Edge | None],
        gradients: Sequence[Any],
        needed: dict[Node, bool] | None,
        node: Node | None = None,
    ) -> None:
        """Accumulate gradients at the targets of the edges.

        Gradients returned by ``node`` are first reduced to the shapes of their tensors.
        """
        for place, gradient in enumerate(gradients):
            edge = edges[place]
            if edge is None or gradient is None or (needed is not None and edge[0] not in needed):
                continue
            if node is not None:
                facts = node.facts[place]
                assert facts is not None, "there are facts wherever there is an edge"
                array = gradient.array
                fits = type(array) is np.ndarray and (array.shape, array.dtype, "cpu") == facts
                if not fits:
                    gradient = _fit(node, place, gradient, facts)
            before, number = edge
            arrived = self._gradients.get(before)
            if arrived is None:
                arrived = self._gradients[before] = [None] * before.num_results
                heapq.heappush(self.order, (-before.number, before))
            sum_so_far = arrived[number]
            arrived[number] = gradient if sum_so_far is None else sum_so_far + gradient

    def take_next(self) -> tuple[Node, list[Any]]:
        """Pop the node to run next with its accumulated gradients."""
        node = heapq.heappop(self.order)[1]
        return node, self._gradients.pop(node)
