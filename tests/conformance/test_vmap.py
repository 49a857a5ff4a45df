"""Transforms beside those of ``torch.func``, where PyTorch is installed.

Random programs of operators that both have, with views and writes, under random nestings of
``vmap``, ``grad``, ``jacrev``, ``jvp`` and ``jacfwd`` with random ``in_dims`` and ``out_dims``;
which operators are called below a transform, of which shapes; and what is refused by both.
"""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import opdispatch
from opdispatch import (
    Library,
    OpdispatchError,
    Tensor,
    TorchDispatchMode,
    func,
    inference_mode,
    no_grad,
    vmap,
)
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode as TheirMode  # noqa: E402

# torch.func.jvp compiles rules of its own when it first meets their operator.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")

SIZE = 3
PLACES = [2, 0, 2]


def _ours_written(x, y):
    x = x * y
    x[1:, 0] = y[0, 1:]
    part = x[:, 1]
    part[...] = +part * y[0]
    return x


def _theirs_written(x, y):
    x = x * y
    x[1:, 0] = y[0, 1:]
    part = x[:, 1]
    part.copy_(part.clone() * y[0])
    return x


# Of matrices of three rows and columns, which stay small, into such matrices.
OPERATORS = {
    "add": (lambda x, y: x + 2 * y, lambda x, y: x + 2 * y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "divide": (lambda x, y: x / (3 + xp.abs(y)), lambda x, y: x / (3 + torch.abs(y))),
    "tanh": (lambda x, y: xp.tanh(x), lambda x, y: torch.tanh(x)),
    "where": (lambda x, y: xp.where(x > y, x, -y), lambda x, y: torch.where(x > y, x, -y)),
    "matmul": (lambda x, y: x @ y / 3, lambda x, y: x @ y / 3),
    "vector": (lambda x, y: x @ y[0] + y, lambda x, y: x @ y[0] + y),
    "transpose": (lambda x, y: xp.matrix_transpose(x) + y, lambda x, y: x.mT + y),
    "sum": (lambda x, y: xp.sum(x, axis=0) + y, lambda x, y: torch.sum(x, 0) + y),
    "mean": (
        lambda x, y: y * xp.mean(x, axis=-1, keepdims=True),
        lambda x, y: y * torch.mean(x, -1, keepdim=True),
    ),
    "max": (lambda x, y: x - xp.max(x), lambda x, y: x - torch.amax(x)),
    "cumsum": (
        lambda x, y: xp.cumulative_sum(x, axis=0) / 3,
        lambda x, y: torch.cumsum(x, 0) / 3,
    ),
    "sort": (lambda x, y: xp.sort(x, axis=-1) + y, lambda x, y: torch.sort(x, -1).values + y),
    "take": (
        lambda x, y: xp.take(x, xp.asarray(PLACES), axis=0) + y,
        lambda x, y: torch.index_select(x, 0, torch.tensor(PLACES)) + y,
    ),
    "index": (lambda x, y: x[PLACES, :] * y[0], lambda x, y: x[PLACES, :] * y[0]),
    "place": (
        lambda x, y: x[xp.argsort(y[0])] + x,
        lambda x, y: x[torch.argsort(y[0])] + x,
    ),
    "parts": (
        lambda x, y: xp.concat([x[1:], y[:1]], axis=0),
        lambda x, y: torch.cat([x[1:], y[:1]], 0),
    ),
    "stack": (
        lambda x, y: xp.stack([x[0], y[1], x[2]], axis=1),
        lambda x, y: torch.stack([x[0], y[1], x[2]], 1),
    ),
    "reshape": (
        lambda x, y: xp.reshape(xp.reshape(x, (-1,)) * 2, (3, 3)) - y,
        lambda x, y: torch.reshape(torch.reshape(x, (-1,)) * 2, (3, 3)) - y,
    ),
    "roll": (lambda x, y: xp.roll(x, 1, axis=0) - y, lambda x, y: torch.roll(x, 1, 0) - y),
    "written": (_ours_written, _theirs_written),
    "zeros": (lambda x, y: xp.zeros_like(x) + y, lambda x, y: torch.zeros_like(x) + y),
    "solve": (
        lambda x, y: xp.linalg.solve(y * 0.1 + 2 * xp.eye(3), x),
        lambda x, y: torch.linalg.solve(y * 0.1 + 2 * torch.eye(3, dtype=x.dtype), x),
    ),
    "det": (
        lambda x, y: y * xp.linalg.det(x + 3 * xp.eye(3)) / 27,
        lambda x, y: y * torch.linalg.det(x + 3 * torch.eye(3, dtype=x.dtype)) / 27,
    ),
}

steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATORS)), st.booleans()), min_size=1, max_size=4
)


def programs(names):
    """The function of two matrices, of both."""

    def make(side):
        def program(x, y):
            for name, exchanged in names:
                step = OPERATORS[name][side]
                x, y = (y, step(y, x)) if exchanged else (step(x, y), y)
            return x + y

        return program

    return make(0), make(1)


def compare(ours, theirs):
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            compare(one, other)
        return
    assert tuple(ours.shape) == tuple(theirs.shape)
    np.testing.assert_allclose(np.asarray(ours), theirs.numpy(force=True), rtol=1e-7, atol=1e-9)


def nested(transforms, function, side):
    """The function under transforms, the innermost first."""
    namespace = (func, torch.func)[side]
    total = (lambda x: xp.sum(x), torch.sum)[side]
    for kind, options in transforms:
        if kind == "vmap":
            function = namespace.vmap(function, **options)
        elif kind == "grad":
            inner = function
            function = namespace.grad(
                lambda x, y, inner=inner: total(inner(x, y)), argnums=options["argnums"]
            )
        elif kind in ("jacrev", "jacfwd"):
            function = getattr(namespace, kind)(function, argnums=options["argnums"])
        else:
            function = moved(namespace, function)
    return function


def moved(namespace, function):
    """How fast the function of two changes, where each argument moves as the other one says."""
    return lambda x, y: namespace.jvp(function, (x, y), (x + 1, y - 2))[1]


FORWARD = {"jvp", "jacfwd"}
KINDS = ["vmap", "vmap", "vmap", "grad", "jacrev", "jvp", "jacfwd"]


@st.composite
def nestings(draw):
    """Transforms, and the batches of each argument, the outermost first: dimension and size.

    No two sizes are the same: else PyTorch takes one batch for another, without a word, where a
    result is the same for all samples and out_dims=1.
    """
    transforms, batches, differentiated, sizes = [], [[], []], 0, iter((2, 4, 5))
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(KINDS))
        if kind == "vmap":
            which = draw(st.sampled_from([(0, 0), (0, None), (None, 0), (1, 0), (0, -1)]))
            transforms.append(("vmap", {"in_dims": which, "out_dims": draw(st.integers(0, 1))}))
        elif differentiated < 2:
            differentiated += 1
            transforms.append((kind, {"argnums": draw(st.integers(0, 1))}))
    for kind, options in transforms:
        if kind == "vmap":
            size = next(sizes)
            for place, dim in enumerate(options["in_dims"]):
                if dim is not None:
                    batches[place].insert(0, (dim, size))
    return transforms, batches


def batched(seed, batches):
    """A matrix with a dimension for each batch, where it is to be."""
    shape = [SIZE, SIZE]
    for dim, size in reversed(batches):
        shape.insert(dim if dim >= 0 else len(shape) + 1 + dim, size)
    return np.random.default_rng(seed).uniform(-1, 1, shape)


@settings(max_examples=30, deadline=None)
@given(names=steps, nesting=nestings(), seed=st.integers(0, 2**32 - 1))
def test_nested_transforms_of_random_programs(names, nesting, seed):
    transforms, batches = nesting
    if FORWARD & {kind for kind, _ in transforms}:
        # Of these, PyTorch's gradients of tangents are not what differences of tangents show.
        assume(not {"det", "solve"} & {name for name, _ in names})
    ours, theirs = programs(names)
    x, y = batched(seed, batches[0]), batched(seed + 1, batches[1])
    got = nested(transforms, ours, 0)(Tensor(x), Tensor(y))
    try:
        want = nested(transforms, theirs, 1)(torch.tensor(x), torch.tensor(y))
    except RuntimeError as error:
        # PyTorch's vmap fails for a result that is the same for all samples and out_dims=1.
        assume("The expanded size of the tensor" not in str(error))
        raise
    compare(got, want)


# -- forward mode --------------------------------------------------------------------------------


def _stopped(a, block):
    with block():
        b = a * a
    return a * b


MOVED = {
    "no_grad": (lambda a: _stopped(a, no_grad), lambda a: _stopped(a, torch.no_grad)),
    "inference_mode": (
        lambda a: _stopped(a, inference_mode),
        lambda a: _stopped(a, torch.inference_mode),
    ),
    "detach": (lambda a: a * a.detach(), lambda a: a * a.detach()),
    "nothing": (lambda a: xp.ones(3), lambda a: torch.ones(3)),
    "itself": (lambda a: (a, a), lambda a: (a, a)),
    "integers": (lambda a: (xp.argmax(a), a * 2), lambda a: (torch.argmax(a), a * 2)),
    "complex": (lambda a: xp.abs(a * (1 + 2j) + 1j), lambda a: torch.abs(a * (1 + 2j) + 1j)),
    "conj": (lambda a: xp.conj(a * 1j) * a, lambda a: torch.conj(a * 1j) * a),
}


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (what, kind)
        for what, kind in itertools.product(MOVED, (float, complex))
        if (what, kind) != ("integers", complex)  # which have no order
    ],
)
def test_tangents(what, kind):
    rng = np.random.default_rng(0)
    x, t = rng.normal(size=(2, 3)).astype(kind) * (1 + (2j if kind is complex else 0))
    ours, theirs = MOVED[what]
    want = torch.func.jvp(theirs, (torch.tensor(x),), (torch.tensor(t),))
    compare(func.jvp(ours, (x,), (t,)), want)
    value, forward = func.linearize(ours, Tensor(x))
    compare((value, forward(t)), want)


# -- what is called below ------------------------------------------------------------------------

NAMES = {
    "expand": "broadcast_to",
    "mul": "multiply",
    "sub": "subtract",
    "neg": "negative",
    "unsqueeze": "expand_dims",
    "view": "reshape",
    "_unsafe_view": "reshape",
    "mm": "matmul",
    "bmm": "matmul",
}


class _Ours(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen.append((func.name.name.removeprefix("array::"), tuple(result.shape)))
        return result


class _Theirs(TheirMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.seen.append((NAMES.get(name, name), tuple(result.shape)))
        return result


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (xp.sin, torch.sin),
        (lambda a: xp.exp(a * a), lambda a: torch.exp(a * a)),
        (lambda a: xp.sum(a), torch.sum),
        (lambda a: xp.sum(xp.sin(a) * a, axis=0), lambda a: torch.sum(torch.sin(a) * a, 0)),
        (lambda a: xp.zeros_like(a) - a, lambda a: torch.zeros_like(a) - a),
    ],
)
@pytest.mark.parametrize("order", ["vmap", "vmap of vmap", "grad", "vmap of grad", "grad of vmap"])
def test_the_same_operators_are_called_below(ours, theirs, order):
    shape = {"vmap of vmap": (2, 4, 3), "grad": (3,)}.get(order, (4, 3))

    def transformed(namespace, total, function):
        def loss(a):
            return total(function(a))

        return {
            "vmap": namespace.vmap(function),
            "vmap of vmap": namespace.vmap(namespace.vmap(function)),
            "grad": namespace.grad(loss),
            "vmap of grad": namespace.vmap(namespace.grad(loss)),
            "grad of vmap": namespace.grad(lambda a: total(namespace.vmap(function)(a))),
        }[order]

    x = np.random.default_rng(0).normal(size=shape)
    our_x, their_x = Tensor(x), torch.tensor(x)
    with _Ours() as mine:
        transformed(func, xp.sum, ours)(our_x)
    with _Theirs() as other:
        transformed(torch.func, torch.sum, theirs)(their_x)
    forward = [*mine.seen], [*other.seen]
    if "grad" in order:  # what goes back is another formula here and there
        begin = "ones_like"
        forward = [list(itertools.takewhile(lambda each: each[0] != begin, s)) for s in forward]
        assert len(forward[0]) < len(mine.seen)
    assert forward[0] == forward[1]


# -- what is refused -----------------------------------------------------------------------------

X = np.arange(6.0).reshape(3, 2)


def _write_to(target):
    def write(a):
        target[0] = a[0]
        return a

    return write


REFUSED = {
    "control flow": (
        lambda: vmap(lambda a: a if xp.sum(a) > 1 else -a)(X),
        lambda x: torch.func.vmap(lambda a: a if a.sum() > 1 else -a)(x),
    ),
    "a number": (
        lambda: vmap(lambda a: a * float(a[0]))(X),
        lambda x: torch.func.vmap(lambda a: a * float(a[0]))(x),
    ),
    "a write to what has no batch": (
        lambda: vmap(_write_to(Tensor(np.zeros(2))))(X),
        lambda x: torch.func.vmap(_write_to(torch.zeros(2, dtype=x.dtype)))(x),
    ),
    "a write to what is outside of grad": (
        lambda: func.grad(_write_to(Tensor(np.zeros(2))))(X[0]),
        lambda x: torch.func.grad(_write_to(torch.zeros(2, dtype=x.dtype)))(x[0]),
    ),
    "places": (
        lambda: vmap(lambda a: xp.nonzero(a)[0])(X),
        lambda x: torch.func.vmap(torch.nonzero)(x),
    ),
    "batch sizes": (
        lambda: vmap(lambda a, b: a)(X, X[:2]),
        lambda x: torch.func.vmap(lambda a, b: a)(x, x[:2]),
    ),
    "in_dims": (
        lambda: vmap(lambda a: a, in_dims=(0, 0))(X),
        lambda x: torch.func.vmap(lambda a: a, in_dims=(0, 0))(x),
    ),
    "a dimension": (
        lambda: vmap(lambda a: a, in_dims=2)(X),
        lambda x: torch.func.vmap(lambda a: a, in_dims=2)(x),
    ),
    "no batch": (
        lambda: vmap(lambda a: a, in_dims=None)(X),
        lambda x: torch.func.vmap(lambda a: a, in_dims=None)(x),
    ),
    "no arguments": (
        lambda: vmap(lambda: X)(),
        lambda x: torch.func.vmap(lambda: x)(),
    ),
    "no tensor": (
        lambda: vmap(lambda a: 3)(X),
        lambda x: torch.func.vmap(lambda a: 3)(x),
    ),
    "out_dims in a list": (
        lambda: vmap(lambda a: a, out_dims=[0])(X),
        lambda x: torch.func.vmap(lambda a: a, out_dims=[0])(x),
    ),
    "out_dims": (
        lambda: vmap(lambda a: a, out_dims=None)(X),
        lambda x: torch.func.vmap(lambda a: a, out_dims=None)(x),
    ),
    "no number": (
        lambda: func.grad(lambda a: a)(X),
        lambda x: torch.func.grad(lambda a: a)(x),
    ),
    "primals in a list": (
        lambda: func.jvp(xp.sin, [X], [X]),
        lambda x: torch.func.jvp(torch.sin, [x], [x]),
    ),
    "tangents in a list": (
        lambda: func.jvp(xp.sin, (X,), [X]),
        lambda x: torch.func.jvp(torch.sin, (x,), [x]),
    ),
    "another shape of tangents": (
        lambda: func.jvp(xp.sin, (X,), (X[0],)),
        lambda x: torch.func.jvp(torch.sin, (x,), (x[0],)),
    ),
    "tangents of integers": (
        lambda: func.jvp(xp.sin, (X,), (X.astype(int),)),
        lambda x: torch.func.jvp(torch.sin, (x,), (x.int(),)),
    ),
    "strict": (
        lambda: func.jvp(lambda a: xp.ones(2), (X,), (X,), strict=True),
        lambda x: torch.func.jvp(lambda a: torch.ones(2), (x,), (x,), strict=True),
    ),
    "no pair": (
        lambda: func.jvp(xp.sin, (X,), (X,), has_aux=True),
        lambda x: torch.func.jvp(torch.sin, (x,), (x,), has_aux=True),
    ),
    "a complex argument of jacfwd": (
        lambda: func.jacfwd(xp.sin)(X + 1j),
        lambda x: torch.func.jacfwd(torch.sin)(x + 1j),
    ),
    "a complex result of jacfwd": (
        lambda: func.jacfwd(lambda a: a * 1j)(X),
        lambda x: torch.func.jacfwd(lambda a: a * 1j)(x),
    ),
    "a complex argument of jacrev": (
        lambda: func.jacrev(xp.sin)(X + 1j),
        lambda x: torch.func.jacrev(torch.sin)(x + 1j),
    ),
    "requires_grad_": (
        lambda: func.grad(lambda a: xp.sum(a.requires_grad_()))(X),
        lambda x: torch.func.grad(lambda a: a.requires_grad_().sum())(x),
    ),
}


def test_out_dims_of_the_only_result_may_be_in_a_tuple():
    ours, theirs = vmap(lambda a: a, out_dims=(1,)), torch.func.vmap(lambda a: a, out_dims=(1,))
    compare(ours(X), theirs(torch.tensor(X)))


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_transforms_raise_as_in_pytorch(what):
    ours, theirs = REFUSED[what]
    with pytest.raises(OpdispatchError):
        ours()
    with pytest.raises((RuntimeError, ValueError)):
        theirs(torch.tensor(X))


def scale_samples(module, library, handles, batch, x):
    """Return what the rule of an operator with defaults is given as in_dims, and the results."""
    seen = []
    with library("scaled", "FRAGMENT") as lib:
        lib.define("f(Tensor x, int by=2, *, int plus=3) -> Tensor")
        lib.impl("f", lambda x, by=2, *, plus=3: x * by + plus, "CPU")

        def rule(info, in_dims, x, by=2, *, plus=3):
            seen.append(in_dims)
            return x * by + plus, 0

        module.register_vmap("scaled::f", rule, lib=lib)
        results = batch(handles.scaled.f)(x), batch(lambda a: handles.scaled.f(a, 4, plus=1))(x)
    return seen, [np.asarray(each).tolist() for each in results]


def test_a_rule_gets_the_dimensions_of_defaults_too():
    ours, values = scale_samples(opdispatch, Library, opdispatch.ops, vmap, Tensor(X))
    theirs, expected = scale_samples(
        torch.library, torch.library._scoped_library, torch.ops, torch.vmap, torch.tensor(X)
    )
    assert values == expected == [(X * 2 + 3).tolist(), (X * 4 + 1).tolist()]
    assert (ours, theirs) == ([(0, None), (0, None)], [(0,), (0, None)])
