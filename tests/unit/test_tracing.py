"""Traces: which calls are recorded, by whom, and what is left behind."""

import asyncio
import contextvars
import threading

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
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
    func,
    functionalize,
    local_dispatch_key_set,
    no_grad,
    ops,
    trace,
    vmap,
)
from opdispatch import array_api as xp
from tests.unit.traced_graphs import X, equal, names
from tests.waits import join


def gradient_of(function):
    leaf = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    function(leaf).backward()
    return leaf.grad


def stopped_by_no_grad(x):
    with no_grad():
        factor = x * x
    return xp.sum(x * factor)


def stopped_by_detach(x):
    return xp.sum(x * (x * x).detach())


@pytest.mark.parametrize(
    ("function", "of_graph"), [(stopped_by_no_grad, [3, 12]), (stopped_by_detach, [1, 4])]
)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_a_graph_stops_gradients_at_detach_alone(function, of_graph, requires_grad, pre_dispatch):
    """As those of torch.jit.trace and make_fx do not for no_grad."""
    x = Tensor(np.ones(2), requires_grad=requires_grad)
    graph = trace(function, x, pre_dispatch=pre_dispatch)
    np.testing.assert_array_equal(gradient_of(function), [1, 4])
    np.testing.assert_array_equal(gradient_of(graph), of_graph)
    with no_grad():  # the caller's
        assert not graph(Tensor(np.ones(2), requires_grad=True)).requires_grad
    assert graph(Tensor(np.array([1.0, 2.0]))).item() == 9


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
    # Of this shape alone: the backward pass says to which shapes gradients are added up.
    other = Tensor(X / 3, requires_grad=True)
    np.testing.assert_allclose(graph(other).detach(), np.exp(X / 3) * (1 + X / 3))


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


def test_named_tuples_stay_what_they_are():
    result = trace(lambda x: xp.linalg.qr(x), X)(X + 1)
    np.testing.assert_allclose(np.asarray(result.Q) @ np.asarray(result.R), X + 1)


def test_a_coroutine_function_is_traced_in_a_block():
    async def function(x):
        await asyncio.sleep(0)
        return xp.exp(x)

    with pytest.raises(ArgumentError, match="await it in the block of a Tracer"):
        trace(function, X)

    async def traced():
        with Tracer(x=X) as tracer:
            both = asyncio.gather(function(X), function(X))  # new tasks, of this block
            tracer.output(*await both)
        return tracer.graph

    graph = asyncio.run(traced())
    assert names(graph) == ["exp", "exp"]
    assert equal(graph(x=X + 1), (np.exp(X + 1),) * 2)


def test_tensors_of_other_layouts_are_values_too(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("same(Tensor x) -> Tensor")
    library.impl("same", lambda x: x, "CompositeExplicitAutograd")
    same = dispatcher.get_schema("t::same")
    sparse = Tensor(np.eye(3)).to_sparse()
    graph = trace(lambda x: same(x), sparse)
    assert "%same : float64[3, 3] sparse_coo = t::same(%x)" in str(graph)
    assert graph(sparse) is sparse
    assert "%x : float64[3, 3] sparse_coo" in str(trace(lambda x: same(x), sparse.array))


def test_graph_call_may_omit_trailing_non_tensors():
    graph = trace(lambda x, n, y: x * n + y, X, 3, X + 1)
    assert str(graph.signature) == "(x, n, y)"
    with pytest.raises(ArgumentError, match="missing a required argument: 'n'"):
        graph(X, y=X)
    with pytest.raises(ArgumentError, match=r"was traced with n = 3, and is called with 3\.0"):
        graph(X, 3.0, X)
    with pytest.raises(ArgumentError, match=r"too many positional arguments; its parameters are"):
        graph(X, 3, X, X)
    last = trace(lambda x, y, n, *, by: x * n + y * by, X, X + 1, 3, by=2.0)
    assert str(last.signature) == "(x, y, n=3, *, by=2.0)"
    assert equal(last(X, X), X * 5)
    assert equal(last(X, X, 3, by=2.0), X * 5)
    with pytest.raises(ArgumentError, match=r"was traced with by = 2\.0, and is called with nan"):
        last(X, X, by=float("nan"))


@pytest.mark.filterwarnings("error")
def test_a_copy_of_a_constant_is_a_call():
    table = Tensor(X.copy())

    def added(x):
        total = xp.asarray(table, copy=True)
        total += x
        return total

    graph = trace(added, X)
    assert graph.nodes[0].operator == "array::astype"
    assert equal(graph(X), 2 * X)
    table[...] = 1.0
    assert equal(graph(X), X + 1), "each time of what the constant is then"
    assert equal(graph(X), X + 1)
    assert equal(table, np.ones_like(X))


def test_zero_and_negative_zero_are_two_constants_and_nan_is_one():
    graph = trace(lambda x, by: xp.copysign(x, by), X, 0.0)
    assert equal(graph(X, 0.0), X)
    with pytest.raises(ArgumentError, match=r"was traced with by = 0\.0, and is called with -0\.0"):
        graph(X, -0.0)
    with pytest.raises(ArgumentError, match="was traced with by = 0j, and is called with"):
        trace(lambda x, by: x * by, X, 0j)(X, complex(0.0, -0.0))
    graph = trace(lambda x, by: x * by, X, float("nan"))
    assert np.isnan(graph(X, float("nan"))).all()


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
        join(thread)
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
            join(each)
    assert names(tracer.graph) == ["exp"] * 200
    assert len({node.name for node in tracer.graph.nodes}) == 200


def test_tensor_freed_during_trace_is_not_confused_with_another():
    def churning(x):
        total = x
        for n in range(200):
            total = total + xp.asarray(np.full(3, float(n)))
        return total

    graph = trace(churning, X)
    assert len(graph.constants) == 200
    assert equal(graph(X + 1), churning(X + 1))


def test_graph_records_detach():
    graph = trace(lambda x: xp.sum(x.detach() * x), Tensor(np.ones(2)))
    assert "array::detach(%x)" in str(graph)
    x = Tensor(np.array([2.0, 3.0]), requires_grad=True)
    graph(x).backward()
    assert x.grad.array.tolist() == [2.0, 3.0]
    for transform in (func.grad, lambda f: vmap(f, in_dims=0), functionalize):
        graph = trace(transform(lambda x: xp.sum(x.detach() * x)), Tensor(np.ones(2)))
        assert "array::detach(" in str(graph)


def test_arithmetic_in_place_can_be_differentiated_in_the_graph():
    def product(x, y):
        x = x * 1
        x *= y
        return xp.sum(x)

    graph = trace(product, Tensor(np.ones(2)), Tensor(np.ones(2)))
    x, y = (Tensor(np.array([2.0, 3.0]) * n, requires_grad=True) for n in (1, 10))
    graph(x, y).backward()
    assert (x.grad.array.tolist(), y.grad.array.tolist()) == ([20.0, 30.0], [2.0, 3.0])
