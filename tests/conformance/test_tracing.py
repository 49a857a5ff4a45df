"""Traces beside PyTorch's: which operators are recorded, in which order, and what is warned of.

``torch.jit.trace`` records at the key Tracer, and throws away unused calls;
``make_fx(pre_dispatch=True)`` records before any other key.
"""

import contextlib
import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdispatch
from opdispatch import Tensor, TracerWarning
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")
make_fx = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx

NAMESPACES = (f"traced_{n}" for n in itertools.count())
SCHEMAS = {
    "twice(Tensor x) -> Tensor": "CompositeImplicitAutograd",
    "many(Tensor x, Tensor[] more, *, float by=1.0) -> (Tensor, Tensor[])": "CPU",
    "iadd_(Tensor(a!) x, Tensor y) -> Tensor(a!)": "CPU",
    "inner(Tensor x) -> Tensor": "CPU",
    "pick(Tensor x, Tensor? y=None, *, int n) -> Tensor": "CompositeExplicitAutograd",
}
# By our names: theirs, where they are others.
THEIRS = {"astype": "to", "multiply": "mul", "subtract": "sub", "negative": "neg"}
UNARY = ("exp", "sin", "tanh", "negative", "square", "abs")
BINARY = ("add", "multiply", "subtract", "maximum", "matmul")
OWN = ("twice", "many", "iadd_", "inner", "pick")


class Ours:
    """The operators, and what records their calls, here."""

    autocast = staticmethod(opdispatch.autocast)
    warning = TracerWarning

    def __init__(self, namespace):
        self.dispatcher = opdispatch.Dispatcher()
        self.library = opdispatch.Library(namespace, "DEF", dispatcher=self.dispatcher)
        self.namespace = namespace
        register(self)

    def op(self, name):
        return self.dispatcher.get_schema(f"{self.namespace}::{name}")

    def function(self, name):
        return getattr(xp, name)

    def tensor(self, array):
        return Tensor(array.copy())

    def traced(self, function, *tensors):
        graph = opdispatch.trace(function, *tensors).eliminate_dead_code()
        return [self.short(node.operator) for node in graph.nodes]

    def traced_before_dispatch(self, function, *tensors):
        graph = opdispatch.trace(function, *tensors, pre_dispatch=True)
        return [self.short(node.operator) for node in graph.nodes]

    def short(self, name):
        name = name.partition("::")[2].partition(".")[0]
        return THEIRS.get(name, name)


class Theirs:
    """The same, of PyTorch."""

    autocast = staticmethod(torch.autocast)
    warning = torch.jit.TracerWarning

    def __init__(self, namespace):
        self.library = torch.library.Library(namespace, "DEF")
        self.namespace = namespace
        register(self)

    def op(self, name):
        return getattr(getattr(torch.ops, self.namespace), name)

    def function(self, name):
        return getattr(torch, THEIRS.get(name, name))

    def tensor(self, array):
        return torch.tensor(array)

    def traced(self, function, *tensors):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # they call it deprecated
            graph = torch.jit.trace(function, tensors, check_trace=False).graph
        kinds = [node.kind() for node in graph.nodes()]
        return [kind.partition("::")[2] for kind in kinds if not kind.startswith("prim::")]

    def traced_before_dispatch(self, function, *tensors):
        nodes = make_fx(function, pre_dispatch=True)(*tensors).graph.nodes
        called = [n.target for n in nodes if isinstance(n.target, torch._ops.OpOverload)]
        return [each._schema.name.partition("::")[2] for each in called]


def register(side):
    exp, sin = side.function("exp"), side.function("sin")
    kernels = {
        "twice": lambda x: exp(x) + x,
        "many": lambda x, more, *, by=1.0: (x * by, [each + x for each in more]),
        "iadd_": lambda x, y: (x.__setitem__(..., x + y), x)[1],
        "inner": lambda x: side.op("twice")(sin(x)),
        "pick": lambda x, y=None, *, n: x * n if y is None else y * n,
    }
    for schema, key in SCHEMAS.items():
        name = schema.partition("(")[0]
        side.library.define(schema)
        side.library.impl(name, kernels[name], key)


@pytest.fixture(scope="module")
def sides():
    namespace = next(NAMESPACES)
    return Ours(namespace), Theirs(namespace)


@st.composite
def programs(draw):
    steps = []
    for n in range(draw(st.integers(1, 10))):
        name = draw(st.sampled_from(UNARY + BINARY + OWN + OWN))
        steps.append((name, draw(st.integers(0, n + 1)), draw(st.integers(0, n + 1))))
    cast = draw(st.booleans())
    return steps, cast


def run(side, program, x, y):
    """The program: each step takes two earlier values; the last value is what it returns."""
    steps, cast = program
    values = [x, y]
    block = side.autocast("cpu") if cast else contextlib.nullcontext()
    with np.errstate(all="ignore"), block:
        for name, first, second in steps:
            one, other = values[first], values[second]
            if name == "many":
                a, [b, c] = side.op("many")(one, [other, one], by=0.5)
                value = a * b + c
            elif name == "iadd_":
                value = one * 2
                row = side.op("iadd_")(value, other)
                side.op("iadd_")(row, value)
            elif name == "pick":
                value = side.op("pick")(one, n=2) + side.op("pick")(one, other, n=3)
            elif name in OWN:
                value = side.op(name)(one)
            elif name in UNARY:
                value = side.function(name)(one)
            else:
                value = side.function(name)(one, other)
            values.append(value)
    return values[-1]


def two_of(side, program):
    """The program as a function of two tensors, and of nothing else."""
    return lambda x, y: run(side, program, x, y)


X, Y = np.eye(2, dtype=np.float32), np.full((2, 2), 0.5, np.float32)


@settings(max_examples=40, deadline=None)
@given(program=programs())
def test_the_same_calls_are_recorded_in_the_same_order(sides, program):
    recorded = [
        side.traced(two_of(side, program), side.tensor(X), side.tensor(Y)) for side in sides
    ]
    assert recorded[0] == recorded[1]


@settings(max_examples=8, deadline=None)
@given(program=programs())
def test_the_same_calls_are_recorded_before_dispatch(sides, program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracerWarning)  # of autocast, of which theirs has nodes
        recorded = [
            side.traced_before_dispatch(two_of(side, program), side.tensor(X), side.tensor(Y))
            for side in sides
        ]
    assert recorded[0] == recorded[1]


READINGS = {
    "bool": lambda x, total: x if total(x) else -x,
    "float": lambda x, total: x * round(float(total(x))),
    "int": lambda x, total: x * int(total(x)),
    "index": lambda x, total: x * [1, 2, 3][total(x)],
    "len": lambda x, total: x * len(x),
    "iteration": lambda x, total: next(iter(x)),
    "item": lambda x, total: x * total(x).item(),
    "numpy": lambda x, total: x * int(np.asarray(x).max()),
}


@pytest.mark.parametrize("name", READINGS)
def test_readings_warn_as_in_pytorch(sides, name):
    warned = []
    for side in sides:
        total = side.function("sum")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            side.traced(
                lambda x, total=total: READINGS[name](x, total), side.tensor(np.ones(2, np.int64))
            )
        warned.append(any(issubclass(each.category, side.warning) for each in caught))
    assert warned == [True, name != "index"]


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_graphs_do_not_stop_gradients_as_no_grad_does():
    def ours(x):
        with opdispatch.no_grad():
            factor = x * x
        return xp.sum(x * factor)

    def theirs(x):
        with torch.no_grad():
            factor = x * x
        return torch.sum(x * factor)

    def gradient(function, leaf):
        function(leaf).backward()
        return np.asarray(leaf.grad)

    x = np.array([1.0, 2.0])
    graph = opdispatch.trace(ours, x)
    got = gradient(graph, Tensor(x, requires_grad=True))
    example = torch.tensor(x)
    scripted = torch.jit.trace(theirs, (example,), check_trace=False)
    for traced in (scripted, make_fx(theirs)(example)):
        np.testing.assert_array_equal(got, gradient(traced, torch.tensor(x, requires_grad=True)))
    assert (got != gradient(ours, Tensor(x, requires_grad=True))).all()
