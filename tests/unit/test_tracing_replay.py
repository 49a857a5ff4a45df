"""Graphs that are called: what they calculate and write to, with which operators, and dead code."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    Dispatcher,
    GraphError,
    Library,
    Tensor,
    TracerWarning,
    ops,
    trace,
)
from opdispatch import array_api as xp
from tests.unit.traced_graphs import X, equal, names


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

    with pytest.warns(TracerWarning, match="setitem_.Tensor writes to a tensor that is neither an"):
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


def test_dead_code_is_what_nothing_depends_on(dispatcher):
    def function(x):
        xp.exp(x)  # dead
        y = x + 1
        row = y[0]
        row[0] = 5.0  # written to a view of what is returned
        z = x * 2
        z[0] = 1.0  # dead: z is not read
        w = xp.sin(x)
        xp.cos(w)  # dead
        return y, w

    graph = trace(function, X)
    less = graph.eliminate_dead_code()
    assert names(less) == ["add", "getitem", "setitem_", "sin"]
    assert equal(less(X), function(X))
    assert names(graph)[0] == "exp"  # the other one is as it was

    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("rows(Tensor x) -> Tensor")
    library.impl("rows", lambda x: Tensor(x.array[:1]), "CPU")
    rows = dispatcher.get_schema("t::rows")

    def through_a_view(x):  # of which the operator's schema says nothing
        y = x + 1
        one = rows(y)
        one[0] = 1.0
        return y

    assert names(trace(through_a_view, X).eliminate_dead_code())[-1] == "setitem_"

    def writing(x):
        y = x[0]
        y[0] = 1.0
        xp.exp(x)

    assert names(trace(writing, X.copy()).eliminate_dead_code()) == ["getitem", "setitem_"]
    unused = trace(lambda x: (xp.add(x, Tensor(X * 3)), x)[1], X).eliminate_dead_code()
    assert (unused.nodes, unused.constants) == ((), ())


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


def test_graph_frees_unneeded_results(dispatcher):
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
