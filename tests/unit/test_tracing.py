"""Traces: which calls are recorded, what graphs do when they are called, and what is warned of."""

import asyncio
import contextvars
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    ArgumentError,
    Dispatcher,
    DispatchKey,
    GraphError,
    Library,
    Tensor,
    TorchDispatchMode,
    Tracer,
    TracerWarning,
    autocast,
    autograd,
    capture_dispatch_trace,
    local_dispatch_key_set,
    no_grad,
    ops,
    trace,
)
from opdispatch import array_api as xp

X = np.arange(6.0).reshape(2, 3)


def names(graph):
    """The operators that a graph calls, without their namespace and overload."""
    return [node.operator.partition("::")[2].partition(".")[0] for node in graph.nodes]


def equal(one, other):
    """Whether two results have the same structure, and the same numbers."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if not hasattr(one, "shape"):
        return one == other
    return one.dtype == other.dtype and np.array_equal(np.asarray(one), np.asarray(other))


# -- what is recorded ----------------------------------------------------------------------------


def test_the_text_of_a_graph_says_all_of_it():
    weight = Tensor(np.ones((3, 2)))

    def layer(x, bias, *, scale=2.0):
        q, r = xp.linalg.qr(x @ weight)
        parts = xp.unstack(r)
        q[0] = bias
        return {"q": q, "sum": (xp.sum(parts[1], dtype=xp.float32) * scale, None, 3)}

    graph = trace(layer, Tensor(X), Tensor(np.ones(2)), scale=0.5)
    assert str(graph).splitlines() == [
        "layer(%x : float64[2, 3], %bias : float64[2]):",
        "  %constant : float64[3, 2] = constant",
        "  %matmul : float64[2, 2] = array::matmul(%x, %constant)",
        "  %linalg_qr : (float64[2, 2], float64[2, 2]) = array::linalg_qr(%matmul)",
        "  %unstack : [float64[2], float64[2]] = array::unstack(%linalg_qr[1])",
        "  %setitem_ : float64[2, 2] = "
        "array::setitem_.Tensor(%linalg_qr[0]!, [0], [None], [None], [], %bias)",
        "  %sum : float32[] = array::sum(%unstack[1], dtype=float32)",
        "  %multiply : float32[] = array::multiply.Scalar(%sum, 0.5)",
        "  return {'q': %setitem_, 'sum': (%multiply, None, 3)}",
    ]
    assert repr(graph) == "<Graph layer of 6 calls>"
    assert graph.constants[0].tensor is weight
    assert graph.nodes[3].schema == ops.array.setitem_.Tensor.schema


def test_calls_of_kernels_are_not_recorded_but_composite_operators_are(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: xp.add(x, x))  # composite
    twice = dispatcher.get_schema("t::twice")
    assert names(trace(lambda x: xp.exp(twice(x)), Tensor(X))) == ["twice", "exp"]
    with capture_dispatch_trace() as lines:
        trace(lambda x: twice(x), Tensor(X))
    visited = [(line.operator, line.key) for line in lines]
    assert visited[:2] == [("t::twice", "Tracer"), ("t::twice", "AutogradCPU")]
    assert ("array::add.Tensor", "Tracer") not in visited


def test_casts_of_autocast_are_calls_unless_it_is_traced_before_dispatch():
    x, w = Tensor(X.astype(np.float32)), Tensor(np.ones((3, 2), np.float32), requires_grad=True)

    def product(x, w):
        with autocast("cpu"):
            return x @ w + w[0] @ (x @ w)[0]

    graph = trace(product, x, w)
    # The weight is cast once for both products.
    first, second = ["astype", "astype", "matmul", "getitem"], ["astype", "matmul", "getitem"]
    assert names(graph) == [*first, *second, "astype", "matmul", "add"]
    with pytest.warns(TracerWarning, match="autocast was switched within a trace before") as caught:
        before = trace(product, x, w, pre_dispatch=True)
    assert len(caught) == 1
    assert "astype" not in names(before)
    expected = product(x, w)
    assert equal(graph(x, w), expected)
    assert before(x, w).dtype == np.float32
    with autocast("cpu"):
        assert equal(before(x, w), expected)
        product(x, w)  # casts w, and keeps that
        again = trace(product, x, w)
    assert not again.constants
    assert names(again) == names(graph)


def test_a_trace_before_dispatch_sees_what_a_mode_there_sees():
    seen = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func.name))
            return func(*args, **(kwargs or {}))

    def function(x):
        return xp.mean(xp.exp(x) @ xp.ones((3, 2), dtype=xp.float32)) + 1

    x = Tensor(X.astype(np.float32))
    with autocast("cpu"):
        graph = trace(function, x, pre_dispatch=True)
        with Noting(_dispatch_key=DispatchKey.PreDispatch):
            function(x)
    assert [node.operator for node in graph.nodes] == seen != []


def test_gradients_are_calls_like_any_other():
    def slope(w):
        [gradient] = autograd.grad(xp.sum(xp.exp(w) * w), w)
        return gradient

    graph = trace(slope, Tensor(X, requires_grad=True))
    assert not graph.constants
    # Of this shape alone: the way back says to which shapes gradients are added up.
    other = Tensor(X / 3, requires_grad=True)
    np.testing.assert_allclose(graph(other), np.exp(X / 3) * (1 + X / 3))


def test_gradients_go_back_through_what_a_graph_has_called():
    def function(x):
        y = xp.zeros((2, 3))
        y[0] = x[0] * x[1]
        return xp.sum(y) + xp.sum(xp.exp(x))

    graph = trace(function, Tensor(X))
    x, other = Tensor(X, requires_grad=True), Tensor(X, requires_grad=True)
    [ours], [expected] = autograd.grad(graph(x), x), autograd.grad(function(other), other)
    np.testing.assert_array_equal(ours, expected)


def test_arguments_in_structures_are_inputs_by_their_places():
    def function(x, *more, weights, **others):
        return [x + more[0], weights["a"][0] * others["last"], weights["n"]]

    w, v = Tensor(X + 1), Tensor(X + 2)
    graph = trace(function, X, v, weights={"a": (w,), "n": 3}, last=X * 2)
    assert [each.name for each in graph.inputs] == ["x", "more_0", "weights_a_0", "others_last"]
    assert str(graph.signature).startswith("(x, *more, weights, **others)")
    again = graph(X * 2, v, weights={"a": [w], "n": 3}, last=X)
    assert equal(again, [X * 2 + X + 2, (X + 1) * X, 3])
    for args, named in [
        ((X,), {"weights": {"a": (w,), "n": 3}, "last": X}),
        ((X, v), {"weights": {"a": (w,), "n": 4}, "last": X}),
        ((X, v), {"weights": {"a": (w,)}, "last": X}),
        ((X, v), {"weights": {"a": (w,), "n": 3}}),
        ((X, v), {"last": X}),
        ((X, v), {"weights": w, "last": X}),
    ]:
        with pytest.raises(ArgumentError, match="function "):
            graph(*args, **named)


def test_what_was_no_tensor_may_be_left_out():
    graph = trace(lambda x, n, y: x * n + y, X, 3, X + 1)
    assert (
        str(graph.signature)
        == "(x, n=3, y=Value(source=<Source.INPUT: 'input'>, number=1, items=()))"
    )
    assert equal(graph(X, y=X), X * 4)
    with pytest.raises(ArgumentError, match="is missing its argument 'y'"):
        graph(X)
    with pytest.raises(ArgumentError, match=r"was traced with n = 3, and is called with 3\.0"):
        graph(X, 3.0, X)
    with pytest.raises(ArgumentError, match=r"too many positional arguments; its parameters are"):
        graph(X, 3, X, X)


def test_one_tensor_is_one_input():
    with pytest.raises(ArgumentError, match="'x' and 'y' of a trace are one and the same tensor"):
        trace(lambda x, y: x + y, X, X)
    with pytest.raises(ArgumentError, match="copy of one of them"):
        trace(lambda x, y: x + y, Tensor(X), X)


def test_factories_keyword_only_arguments_and_numbers_of_all_kinds():
    def function(x):
        y = xp.full((2, 3), float("inf"), dtype=xp.float32)
        return xp.clip(x, -1.0, max=2) + xp.astype(y, xp.float64) * 0 + 1j

    with np.errstate(invalid="ignore"):
        graph = trace(function, X)
        assert names(graph) == ["full", "clip", "astype", "multiply", "add", "add"]
        scope = {}
        exec(graph.code, scope)
        one, other = graph(X), scope["function"](X, ops=ops)
    np.testing.assert_array_equal(one, other)
    assert isinstance(trace(lambda: xp.zeros(2))(), Tensor)
    assert trace(lambda: None)() is None


def test_an_error_in_a_trace_leaves_nothing_behind():
    state = local_dispatch_key_set()

    def failing(x):
        try:
            xp.reshape(x, (5, 5))  # this call is not part of the graph
        except ValueError:
            xp.exp(x)
        raise KeyError("mine")

    tracer = Tracer(x=X)
    with pytest.raises(KeyError, match="mine"), tracer:
        failing(X)
    assert local_dispatch_key_set() == state
    with pytest.raises(GraphError, match="no graph before the end of the trace"):
        _ = tracer.graph
    with pytest.raises(ArgumentError, match="for one block"), tracer:
        pass
    with pytest.raises(ArgumentError, match="the trace is over"):
        tracer.output(X)

    def caught(x):
        try:
            return failing(x)
        except KeyError:
            return xp.sin(x)

    graph = trace(caught, X)
    assert names(graph) == ["exp", "sin"]
    assert local_dispatch_key_set() == state


def test_traces_nest_and_each_has_all_of_its_block():
    with Tracer(x=X) as outer:
        y = xp.exp(X)
        with Tracer(y=y) as inner:
            z = xp.sin(y)
            inner.output(z)
        before = trace(lambda z: xp.cos(z), z, pre_dispatch=True)
        outer.output(xp.tan(z), y)
    assert [names(each.graph) for each in (outer, inner)] == [["exp", "sin", "cos", "tan"], ["sin"]]
    assert names(before) == ["cos"]
    assert equal(outer.graph(x=X / 2), (np.tan(np.sin(np.exp(X / 2))), np.exp(X / 2)))
    # A graph that is called within a trace is what it calls.
    assert names(trace(lambda x: inner.graph(x) + 1, X)) == ["sin", "add"]


def test_threads_and_tasks_have_their_own_traces():
    found = {}

    def in_thread():
        found["thread"] = (local_dispatch_key_set(), names(trace(lambda x: xp.tan(x), X)))

    with Tracer(x=X) as tracer:
        xp.exp(X)
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
        inherited = contextvars.copy_context()
    default = contextvars.Context().run(local_dispatch_key_set)
    assert found["thread"] == (default, ["tan"])
    # Who was started within a trace, and outlives it, calls as if there were none.
    assert equal(inherited.run(lambda: xp.sin(X)), np.sin(X))
    assert inherited.run(lambda: names(trace(lambda x: xp.cos(x), X))) == ["cos"]
    assert names(tracer.graph) == ["exp"]

    async def traced(operator, turns):
        with Tracer(x=X) as own:
            for _ in range(3):
                getattr(xp, operator)(X)
                await asyncio.sleep(0)
        turns.append(names(own.graph))

    async def both():
        turns = []
        await asyncio.gather(traced("sin", turns), traced("cos", turns))
        return sorted(turns)

    assert asyncio.run(both()) == [["cos"] * 3, ["sin"] * 3]


def test_a_copied_context_records_from_another_thread_meanwhile():
    with Tracer(x=X) as tracer:
        contexts = [contextvars.copy_context() for _ in range(4)]
        threads = [
            threading.Thread(target=c.run, args=(lambda: [xp.exp(X) for _ in range(50)],))
            for c in contexts
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert names(tracer.graph) == ["exp"] * 200
    assert len({node.name for node in tracer.graph.nodes}) == 200


def test_what_is_freed_in_a_trace_is_not_taken_for_another_tensor():
    def churning(x):
        total = x
        for n in range(200):
            total = total + xp.asarray(np.full(3, float(n)))
        return total

    graph = trace(churning, X)
    assert len(graph.constants) == 200
    assert equal(graph(X + 1), churning(X + 1))


# -- writes and views ----------------------------------------------------------------------------


def test_a_graph_writes_to_what_the_function_wrote_to():
    def function(x):
        row = x[1]
        row *= 2.0  # to x, through a view
        x[0, 0] = xp.sum(row)
        return row

    x = Tensor(X.copy())
    graph = trace(function, x)
    ours, expected = Tensor(X + 1), Tensor(X + 1)
    assert equal(graph(ours), function(expected))
    assert equal(ours, expected)


def test_a_constant_that_is_written_to_is_warned_of_and_written_to_again():
    counter = Tensor(np.zeros(2))

    def count(x):
        counter[0] = xp.sum(counter) + 1
        return x * counter[0]

    with pytest.warns(TracerWarning, match="setitem_.Tensor writes to a tensor that is no input"):
        graph = trace(count, X)
    graph(X)
    assert counter.array[0] == 2.0


def test_an_operator_without_returns_is_kept_for_what_it_writes(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("fill_(Tensor(a!) x, float to) -> ()")
    library.define("note(Tensor x) -> ()")
    library.define("pair(Tensor x, Tensor[] more) -> (Tensor, Tensor[])")
    notes = []

    def fill(x, to):
        x[...] = to

    library.impl("fill_", fill, "CPU")
    library.impl("note", lambda x: notes.append(float(xp.sum(x))), "CPU")
    library.impl("pair", lambda x, more: (x * 2, [each + x for each in more]), "CPU")
    found = {n: dispatcher.get_schema(f"t::{n}") for n in ("fill_", "note", "pair")}

    def function(x, y):
        found["fill_"](x, 2.0)
        found["note"](x)
        a, [b, c] = found["pair"](x, [y, x])
        return c, [a, b]

    graph = trace(function, X.copy(), X.copy())
    x = X.copy()
    assert equal(graph(x, X), function(X.copy(), X))
    assert x[0, 0] == 2.0
    assert notes == [12.0, 12.0, 12.0]
    assert "t::fill_(%x!, 2.0)" in str(graph)


def test_dead_code_is_what_nothing_depends_on():
    def function(x):
        xp.exp(x)  # dead
        y = x + 1
        row = y[0]
        row[0] = 5.0  # written to a view of what is returned
        z = x * 2
        z[0] = 1.0  # dead: nobody sees z
        w = xp.sin(x)
        xp.cos(w)  # dead
        return y, w

    graph = trace(function, X)
    less = graph.eliminate_dead_code()
    assert names(less) == ["add", "getitem", "setitem_", "sin"]
    assert equal(less(X), function(X))
    assert names(graph)[0] == "exp"  # the other one is as it was

    def writing(x):
        y = x[0]
        y[0] = 1.0
        xp.exp(x)

    assert names(trace(writing, X.copy()).eliminate_dead_code()) == ["getitem", "setitem_"]
    unused = trace(lambda x: (xp.add(x, Tensor(X * 3)), x)[1], X).eliminate_dead_code()
    assert (unused.nodes, unused.constants) == ((), ())


# -- what a graph is called with -----------------------------------------------------------------


UNARY = ("exp", "sin", "abs", "negative", "square")
BINARY = ("add", "multiply", "subtract", "maximum")
SHAPED = ("sum", "mean", "matrix_transpose", "stack", "getitem", "write")


@st.composite
def programs(draw):
    """Steps: a function, and the numbers of the values that it takes."""
    steps = []
    for n in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from(UNARY + BINARY + SHAPED))
        steps.append((name, draw(st.integers(0, n + 1)), draw(st.integers(0, n + 1))))
    return steps, draw(st.lists(st.integers(0, 12), min_size=1, max_size=3))


def run_program(program, x, y):
    steps, outputs = program
    values = [x, y]
    for name, first, second in steps:
        one, other = values[first], values[second]
        if name in UNARY:
            values.append(getattr(xp, name)(one))
        elif name in BINARY:
            values.append(getattr(xp, name)(one, other))
        elif name in ("sum", "mean"):
            values.append(one - getattr(xp, name)(one, axis=-1, keepdims=True))
        elif name == "matrix_transpose":
            values.append(xp.matrix_transpose(xp.matrix_transpose(one)))
        elif name == "stack":
            values.append(xp.unstack(xp.stack([one, other]))[1])
        elif name == "getitem":
            values.append(one[:, ::-1])
        else:
            copied = one + 0.0
            copied[0] = other[-1]
            values.append(copied)
    return [values[n % len(values)] for n in outputs]


@settings(max_examples=40)
@given(programs(), st.tuples(st.integers(1, 4), st.integers(1, 4)), st.booleans(), st.randoms())
def test_graphs_calculate_what_functions_do_for_other_shapes_too(program, shape, wrapped, random):
    wrap = Tensor if wrapped else np.asarray
    x, y = X / 3, np.cos(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)  # of an output that is an input
        graph = trace(lambda x, y: run_program(program, x, y), Tensor(x), Tensor(y))
    rng = np.random.default_rng(random.randrange(1000))
    with np.errstate(all="ignore"):
        for one, other in [(x, y), (rng.normal(size=shape), rng.normal(size=shape))]:
            expected = run_program(program, wrap(one.copy()), wrap(other.copy()))
            assert equal(graph(wrap(one.copy()), wrap(other.copy())), expected)
            less = graph.eliminate_dead_code()
            assert equal(less(wrap(one.copy()), wrap(other.copy())), expected)


def test_a_graph_runs_with_the_operators_of_any_dispatcher():
    graph = trace(lambda x: xp.exp(x) + 1, X)
    other = Dispatcher()
    library = Library("array", "DEF", dispatcher=other)
    for name in ("exp", "add.Scalar"):
        library.define(
            str(
                ops.array.__getattr__(name.partition(".")[0])
                .__getattr__(name.partition(".")[2] or "default")
                .schema
            )
        )
    library.impl("exp", lambda x: x * 10, "CPU")
    library.impl("add.Scalar", lambda x, y: x - y, "CPU")
    assert equal(graph.on(other)(X), X * 10 - 1)
    assert equal(graph(X), np.exp(X) + 1)
    with pytest.raises(AttributeError, match="array::exp"):
        graph.on(Dispatcher())(X)
    changed = Dispatcher()
    Library("array", "DEF", dispatcher=changed).define("exp(Tensor x, Tensor y) -> Tensor")
    with pytest.raises(GraphError, match=r"traced with array::exp.*which cannot take the same"):
        graph.on(changed)(X)


def test_a_graph_frees_what_nobody_needs_any_more(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("next(Tensor x) -> Tensor")
    living, most = set(), []

    class Counted(np.ndarray):
        pass

    def following(x):
        import weakref

        result = np.asarray(x) + 1
        living.add(id(result))
        weakref.finalize(result, living.discard, id(result))
        most.append(len(living))
        return result

    library.impl("next", following, "CPU")
    op = dispatcher.get_schema("t::next")

    def chain(x):
        for _ in range(20):
            x = op(x)
        return x

    graph = trace(chain, X)
    most.clear()
    graph(X)
    assert max(most) <= 3


# -- warnings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x: x if xp.sum(x) else -x, r"bool\(\) of a tensor"),
        (lambda x: x * float(xp.sum(x)), r"float\(\) of a tensor"),
        (lambda x: x * int(xp.sum(x)), r"int\(\) of a tensor"),
        (lambda x: x * complex(xp.sum(x)).real, r"complex\(\) of a tensor"),
        (lambda x: x * xp.sum(x).item(), r"item\(\) of a tensor"),
        (lambda x: x[: xp.argmax(x[1])], "as an index"),
        (lambda x: x * len(x), r"len\(\) of a tensor"),
        (lambda x: sum(row for row in x), r"len\(\) of a tensor"),
        (lambda x: x * np.asarray(xp.exp(x)).max(), "as NumPy's array"),
        (lambda x: x * np.sin(x).max(), "in a function of NumPy's"),
        (lambda x: x * np.from_dlpack(x + 1).max(), "by DLPack"),
        (lambda x: x + xp.full((3,), xp.sum(x)), "a number out of a tensor"),
        (lambda x: x + xp.asarray([xp.sum(x)]), "in a list given to asarray"),
        (lambda x: x + x.to_sparse().to_dense(), "method of its layout"),
        (lambda x: x + Tensor(x.array[0]), "shares memory with one of the graph"),
        (lambda x: Tensor(np.ones(2)), "an output of the graph, .*, is a constant of it"),
    ],
)
def test_what_python_sees_of_tensors_is_a_constant_and_warned_of(read, what):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # outside of a trace nothing is
        expected = read(Tensor(X))
    with pytest.warns(TracerWarning, match=what) as caught:
        graph = trace(read, Tensor(X))
    assert {each.filename for each in caught} == {__file__}
    assert equal(graph(Tensor(X)), expected)


def test_a_number_that_an_operator_returns_is_warned_of(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("count(Tensor x) -> int")
    library.impl("count", lambda x: x.size, "CPU")
    count = dispatcher.get_schema("t::count")
    with pytest.warns(TracerWarning, match="t::count returns a number"):
        graph = trace(lambda x: x * count(x), X)
    assert "%count : int = t::count(%x)" in str(graph)
    assert equal(graph(X[:1]), X[:1] * 6)


def test_kernels_and_what_no_input_leads_to_are_not_warned_of():
    def function(x):
        n = float(xp.asarray(3.0))  # not of the graph
        return xp.linalg.svdvals(x) * n  # its kernel looks at its tensors

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(function, Tensor(X))
        trace(function, Tensor(X), pre_dispatch=True)
        with no_grad():
            trace(lambda x: xp.asarray(x, copy=True) + 1, Tensor(X))
