"""The state of one trace: its calls, and the map from tensors to values.

Note [Which tensor is which value]
    Tensors are mapped to values by identity, or, for a different tensor over the same array, by the
    identity of the array. So a result that is wrapped again, detached, or saved for the backward
    pass is still the same value. Tensors are held by weak references; those that do not support
    them are kept alive by the trace.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opdispatch.arrays import find_key_bits
from opdispatch.errors import ArgumentError
from opdispatch.local_state.tracing_state import warn_of_trace
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.node import (
    Constant,
    Input,
    Node,
    Source,
    TensorFacts,
    Value,
    facts_in,
)
from opdispatch.tracing.pytree import leaves, map_leaves
from opdispatch.tracing.unique_names import UniqueNames

if TYPE_CHECKING:
    from opdispatch.local_state.operator import Operator

_Alive = Callable[[], Any]


class GraphRecorder:
    """Records the calls of one trace.

    ``_lock`` protects the recorded state, since threads and tasks started within a trace may record
    concurrently. It is not held while operators run.
    """

    def __init__(self, *, pre_dispatch: bool) -> None:
        self.pre_dispatch = pre_dispatch
        self.is_over = False
        self.inputs: list[Input] = []
        self.constants: list[Constant] = []
        self.nodes: list[Node] = []
        self.handles: dict[str, Operator] = {}
        self._lock = threading.RLock()
        self._values: dict[int, tuple[Value, _Alive]] = {}
        self._names = UniqueNames()

    def add_input(self, name: str, tensor: Any) -> Value:
        """Add an input to the graph. Raises ArgumentError if the tensor is already an input."""
        value = Value(Source.INPUT, len(self.inputs))
        known = self._find(tensor)
        if known is not None:
            raise ArgumentError(
                f"the inputs {self.inputs[known.number].name!r} and {name!r} of a trace are one "
                "and the same tensor, so that it is unknown which of them is used",
                hint="trace with a copy of one of them",
            )
        self.inputs.append(Input(self._names.new(name), TensorFacts.of(tensor)))
        self._know(tensor, value)
        return value

    def begin(
        self,
        operator: str,
        handle: Operator | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Callable[[Any], None]:
        """Begin recording a call; the returned function must be called with its result."""
        with self._lock:
            given = tuple(map_leaves(self._as_argument, each) for each in args)
            named = {name: map_leaves(self._as_argument, each) for name, each in kwargs.items()}

        arrays = _arrays_in(_not_annotated(handle, args, kwargs))

        def finish(result: Any) -> None:
            made = _arrays_in(result)
            shared = any(np.may_share_memory(one, other) for one in made for other in arrays)
            with self._lock:
                if not self.is_over:
                    self._add_node(operator, handle, given, named, result, shared)

        return finish

    def knows(self, value: object) -> bool:
        """Return whether a tensor is an input or the result of a recorded call."""
        with self._lock:
            found = self._find(value)
        return found is not None and found.source is not Source.CONSTANT

    def value_of_output(self, output: Any) -> Any:
        """Return the value of a tensor that the graph returns; anything else is returned
        unchanged."""
        if find_key_bits(output) is None:
            return output
        with self._lock:
            found = self._find(output)
            if found is None or found.source is Source.CONSTANT:
                warn_of_trace(
                    f"an output of the graph, {TensorFacts.of(output)}, is a constant of it: no "
                    "recorded call has made it"
                )
            return found or self._new_constant(output)

    def _as_argument(self, given: Any) -> Any:
        if find_key_bits(given) is None:
            return given
        found = self._find(given)
        if found is None:
            self._warn_of_shared_memory(given)
            found = self._new_constant(given)
        return found

    def _add_node(
        self,
        operator: str,
        handle: Operator | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        shared: bool,
    ) -> None:
        schema = None
        if handle is not None:
            self.handles[operator] = handle
            schema = handle.call_signature.schema
        name = self._names.new(operator.partition("::")[2].partition(".")[0])
        number = len(self.nodes)
        node = Node(name, operator, args, kwargs, facts_in(result), schema, shared)
        self.nodes.append(node)
        for items, tensor in _with_places(result):
            # Also for a known tensor, such as a written or returned argument: from now on, it is
            # mapped to the result of this call.
            self._know(tensor, Value(Source.NODE, number, items))
        for value in node.written:
            if value.source is Source.CONSTANT:
                warn_of_trace(
                    f"{operator} writes to a tensor that is neither an input of the graph nor a "
                    "result in it: the graph writes to that very tensor each time that it runs"
                )
        if _has_number(node.returns) and any(node.uses):
            warn_of_trace(
                f"{operator} returns a number, which is a constant where the graph uses it"
            )

    def _new_constant(self, tensor: Any) -> Value:
        value = Value(Source.CONSTANT, len(self.constants))
        name = self._names.new("constant")
        self.constants.append(Constant(name, tensor, TensorFacts.of(tensor)))
        self._know(tensor, value)
        return value

    # -- which tensor is which value: see the Note ------------------------------------------------

    def _know(self, tensor: Any, value: Value) -> None:
        for each in _identities(tensor):
            self._values[id(each)] = (value, _reference_to(each))

    def _find(self, tensor: Any) -> Value | None:
        for each in _identities(tensor):
            found = self._values.get(id(each))
            if found is not None:
                if found[1]() is each:
                    return found[0]
                del self._values[id(each)]  # the id of a freed object, reused
        return None

    def _warn_of_shared_memory(self, tensor: Any) -> None:
        """Warn of an unknown tensor that may be a view of a known one, made without an operator."""
        array = _identities(tensor)[-1]
        if not isinstance(array, np.ndarray):
            return
        for value, alive in list(self._values.values()):
            other = alive()
            if (
                value.source is not Source.CONSTANT
                and isinstance(other, np.ndarray)
                and np.may_share_memory(array, other)
            ):
                warn_of_trace(
                    f"a tensor, {TensorFacts.of(tensor)}, that shares memory with one of the "
                    "graph was made without an operator: it is a constant of the graph"
                )
                return


def _arrays_in(tree: Any) -> list[Any]:
    """Return the NumPy arrays among the tensors, for comparison of their memory."""
    found = (each.array if isinstance(each, Tensor) else each for each in leaves(tree))
    return [each for each in found if isinstance(each, np.ndarray)]


def _not_annotated(
    handle: Operator | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments that the results were observed to alias although the schema does not
    declare it."""
    if handle is None:
        return []  # nothing is said, and everything is expected
    arguments = handle.call_signature.schema.arguments
    annotated = {each.name for each in arguments if each.alias_info is not None}
    given = {each.name: value for each, value in zip(arguments, args, strict=False)}
    return [value for name, value in {**given, **kwargs}.items() if name not in annotated]


def _has_number(returned: Any) -> bool:
    return any(isinstance(each, int | float | complex) for each in leaves(returned))


def _identities(tensor: Any) -> tuple[Any, ...]:
    """Return a tensor and its array."""
    return (tensor, tensor.array) if isinstance(tensor, Tensor) else (tensor,)


def _reference_to(value: Any) -> _Alive:
    try:
        return weakref.ref(value)
    except TypeError:  # NumPy scalars, for instance
        return lambda: value


def _with_places(result: Any, items: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Any]]:
    """Return the tensors in an operator's result, with the indices that select them."""
    if isinstance(result, list | tuple):
        return [
            found
            for place, each in enumerate(result)
            for found in _with_places(each, (*items, place))
        ]
    return [] if find_key_bits(result) is None else [(items, result)]
