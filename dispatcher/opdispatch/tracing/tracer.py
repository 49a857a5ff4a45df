"""Tracing: record the operator calls of a function or block as a graph.

    graph = trace(function, x, weights)

or, for a block of code,

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
from opdispatch.tracing.pytree import map_leaves, named_leaves

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_Kind = inspect.Parameter


class Tracer:
    """Context manager that records the operator calls of a block into a graph.

    Keyword arguments name the inputs: tensors, or lists, tuples and dicts of tensors. Other tensors
    that are passed to operators, and numbers, become constants of the graph. ``output`` sets its
    results. Calls are recorded at the key Tracer, after autocast (whose casts are recorded as
    calls) and before Autograd and composite kernels; with ``pre_dispatch``, before any key. Calls
    made by kernels are not recorded.

    Applies to the current thread or task; new tasks inherit the traces of their creator. Traces can
    be nested, and each records all calls. A Tracer can be used for one block only. There is no
    graph after an exception.
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
        """Replace each tensor in the tree by a new input."""
        names = iter([each for each, _ in named_leaves(name, tree)])

        def input_of(leaf: Any) -> Any:
            own = next(names)
            return leaf if find_key_bits(leaf) is None else self._recorder.add_input(own, leaf)

        return map_leaves(input_of, tree)

    def output(self, *values: Any) -> None:
        """Add results of the graph: tensors, or lists, tuples and dicts of tensors.

        The graph returns None without results, a single result itself, and several as a tuple.
        Later in-place writes to a result are included. Raises ArgumentError after the block.
        """
        if self._recorder.is_over:
            raise ArgumentError("the trace is over; what it returns is said in its block")
        self._outputs += [map_leaves(self._recorder.value_of_output, each) for each in values]

    @property
    def graph(self) -> Graph:
        """The recorded graph. Raises GraphError before the end of the block and after an
        exception."""
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
    """Call a function once and return the graph of its operator calls.

    Tensors among the arguments, also in lists, tuples and dicts, become inputs of the graph; other
    arguments become constants. Plain arrays are passed to the function as Tensors, since arithmetic
    on plain arrays calls no operators. See ``Tracer``. Propagates errors of the function, and
    raises ArgumentError if a tensor is passed twice, and for a coroutine function.
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
    """Mode that records calls before any dispatch key."""

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
    """Return names, kinds and values of a function's arguments, without omitted ones."""
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
    except (
        TypeError,
        ValueError,
    ):  # a built-in without a signature, or wrong arguments, for which the call itself raises
        positional = [(f"arg{n}", _Kind.POSITIONAL_ONLY, each) for n, each in enumerate(args)]
        return positional + [(n, _Kind.KEYWORD_ONLY, each) for n, each in kwargs.items()]
    return [(name, signature.parameters[name].kind, value) for name, value in given.items()]


def _autocast_of_task() -> tuple[DispatchKeySet, Mapping[str, Any]]:
    """Return the excluded autocast keys and the autocast dtypes."""
    return local_dispatch_key_set()[1] & AUTOCAST_KEYS, AUTOCAST_STATE.get().dtypes


def _as_tensor(leaf: Any) -> Any:
    is_plain = find_backend(type(leaf)) is not None or find_layout(type(leaf)) is not None
    return Tensor(leaf) if is_plain else leaf


@contextmanager
def _fresh_autocast_cache() -> Iterator[None]:
    """Use an empty autocast cache in the block, so that every cast is recorded."""
    state = AUTOCAST_STATE.get()
    token = AUTOCAST_STATE.set(state if state.cache is None else state._replace(cache={}))
    try:
        yield
    finally:
        AUTOCAST_STATE.reset(token)
