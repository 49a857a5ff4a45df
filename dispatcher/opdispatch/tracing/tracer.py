"""Tracing: a graph of what a function calls.

    graph = trace(function, x, weights)

or, where there is no function,

    with Tracer(x=x) as tracer:
        tracer.output(xp.exp(x))
    tracer.graph
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from opdispatch.arrays import find_backend, find_key_bits, find_layout
from opdispatch.errors import ArgumentError, GraphError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.autocast_mode import AUTOCAST_KEYS, AUTOCAST_STATE
from opdispatch.local_state.local_dispatch_key_set import local_dispatch_key_set
from opdispatch.local_state.torch_dispatch_mode import TorchDispatchMode
from opdispatch.local_state.tracing_state import tracing, warn_of_trace, without
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.graph import Graph
from opdispatch.tracing.graph_recorder import GraphRecorder
from opdispatch.tracing.node import Parameter
from opdispatch.tracing.structure import map_leaves, named_leaves

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_Kind = inspect.Parameter


class Tracer:
    """Records the calls of operators in a ``with`` block into a graph.

    The inputs are tensors, or lists, tuples and dicts with tensors, by their names; any other
    tensor that an operator is given is a constant of the graph, and so is each number. What the
    graph returns is said by ``output``. Calls are recorded at the key Tracer: casts of autocast are
    calls of their own, and neither Autograd nor composite kernels have done their part; or, with
    ``pre_dispatch``, before any other key. What kernels call is not recorded.

    It holds for the current thread or task; a new task begins with the traces of its creator.
    Traces nest, and each records. For one block. After an exception there is no graph.
    """

    def __init__(
        self, inputs: Mapping[str, Any] | None = None, /, *, pre_dispatch: bool = False, **more: Any
    ) -> None:
        given = {**(inputs or {}), **more}
        self._start(
            "graph",
            [(name, _Kind.POSITIONAL_OR_KEYWORD, value) for name, value in given.items()],
            pre_dispatch,
        )

    @classmethod
    def _of_parameters(
        cls, name: str, given: Sequence[tuple[str, Any, Any]], pre_dispatch: bool
    ) -> Self:
        tracer = cls.__new__(cls)
        tracer._start(name, given, pre_dispatch)
        return tracer

    def _start(self, name: str, given: Sequence[tuple[str, Any, Any]], pre_dispatch: bool) -> None:
        self._name = name
        self._recorder = GraphRecorder(pre_dispatch=pre_dispatch)
        self._parameters = tuple(
            Parameter(each, kind, self._with_inputs(each, value)) for each, kind, value in given
        )
        self._outputs: list[Any] = []
        self._stack = ExitStack()
        self._graph: Graph | None = None

    def _with_inputs(self, name: str, tree: Any) -> Any:
        """Return the tree with an input for each tensor in it."""
        names = iter([each for each, _ in named_leaves(name, tree)])

        def input_of(leaf: Any) -> Any:
            own = next(names)
            return leaf if find_key_bits(leaf) is None else self._recorder.add_input(own, leaf)

        return map_leaves(input_of, tree)

    def output(self, *values: Any) -> None:
        """Add values that the graph returns.

        Tensors, or lists, tuples and dicts with tensors in them.

        The graph returns None, the one, or a tuple. What an operator writes to it later, is in it.
        Raises ArgumentError after the block.
        """
        if self._recorder.is_over:
            raise ArgumentError("the trace is over; what it returns is said in its block")
        self._outputs += [map_leaves(self._recorder.value_of_output, each) for each in values]

    @property
    def graph(self) -> Graph:
        """Recorded graph. Raises GraphError unless the block has ended without an exception."""
        if self._graph is None:
            raise GraphError("there is no graph before the end of the trace, nor if that failed")
        return self._graph

    def __enter__(self) -> Self:
        if self._recorder.is_over or self._recorder.nodes:
            raise ArgumentError("a Tracer is for one block; make another one for the next")
        self._stack.enter_context(_fresh_autocast_cache())
        self._stack.enter_context(tracing(self._recorder))
        if self._recorder.pre_dispatch:
            self._stack.enter_context(_PreDispatchTracer(self._recorder))
        return self

    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None:
        recorder = self._recorder
        recorder.is_over = True
        self._stack.close()
        if exc_type is None:
            outputs = self._outputs
            returned = outputs[0] if len(outputs) == 1 else tuple(outputs) if outputs else None
            self._graph = Graph(
                name=self._name,
                parameters=self._parameters,
                inputs=tuple(recorder.inputs),
                constants=tuple(recorder.constants),
                nodes=tuple(recorder.nodes),
                outputs=returned,
                handles=dict(recorder.handles),
            ).without_unused_constants()


def trace(
    function: Callable[..., Any], /, *args: Any, pre_dispatch: bool = False, **kwargs: Any
) -> Graph:
    """Call a function once, and give the graph of the operators that it calls.

    The tensors among the arguments, in lists, tuples and dicts as well, are the graph's inputs;
    other arguments are constants in it. Plain arrays are given to the function as Tensors: Python's
    arithmetic with plain arrays calls no operators. See ``Tracer``. Raises what the function
    raises, and ArgumentError if one tensor is given twice, or for a coroutine function.
    """
    if inspect.iscoroutinefunction(function):
        raise ArgumentError(
            "a coroutine function calls nothing before it is awaited, and cannot be traced",
            hint="await it in the block of a Tracer",
        )
    args, kwargs = map_leaves(_as_tensor, (args, kwargs))
    name = getattr(function, "__name__", type(function).__name__)
    given = _parameters_of(function, args, kwargs)
    tracer = Tracer._of_parameters(name if name.isidentifier() else "graph", given, pre_dispatch)
    with tracer:
        tracer.output(function(*args, **kwargs))
    return tracer.graph


class _PreDispatchTracer(TorchDispatchMode):
    """Tells a recorder of calls before any other key."""

    def __init__(self, recorder: GraphRecorder) -> None:
        super().__init__(_dispatch_key=DispatchKey.PreDispatch)
        self._recorder = recorder
        self._autocast = _autocast_of_task()

    def __torch_dispatch__(
        self,
        func: OperatorHandle,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._recorder.is_over:
            return func(*args, **kwargs)
        finish = self._recorder.begin(str(func.name), func, args, kwargs)
        if self._autocast != (now := _autocast_of_task()):
            self._autocast = now
            warn_of_trace(
                "autocast was switched within a trace before dispatch, whose graph says nothing of "
                "that: it runs under the autocast of its caller"
            )
        with without(self._recorder):
            result = func(*args, **kwargs)
        finish(result)
        return result


def _parameters_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and values of a function's arguments.

    Those with their defaults are left out.
    """
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
    except (
        TypeError,
        ValueError,
    ):  # a built-in function, or one that is about to say what is wrong
        positional = [(f"arg{n}", _Kind.POSITIONAL_ONLY, each) for n, each in enumerate(args)]
        return positional + [(n, _Kind.KEYWORD_ONLY, each) for n, each in kwargs.items()]
    return [(name, signature.parameters[name].kind, value) for name, value in given.items()]


def _autocast_of_task() -> tuple[DispatchKeySet, Mapping[str, Any]]:
    """Return the keys that autocast turns on, or rather off, and the dtypes."""
    return local_dispatch_key_set()[1] & AUTOCAST_KEYS, AUTOCAST_STATE.get().dtypes


def _as_tensor(leaf: Any) -> Any:
    is_plain = find_backend(type(leaf)) is not None or find_layout(type(leaf)) is not None
    return Tensor(leaf) if is_plain else leaf


@contextmanager
def _fresh_autocast_cache() -> Iterator[None]:
    """Use an empty autocast cache in the block: an earlier cast is not one of its calls."""
    state = AUTOCAST_STATE.get()
    token = AUTOCAST_STATE.set(state if state.cache is None else state._replace(cache={}))
    try:
        yield
    finally:
        AUTOCAST_STATE.reset(token)
