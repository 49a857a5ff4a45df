"""Operators of one's own under ``vmap``: loops, rules, decompositions, random numbers."""

import numpy as np
import pytest

from opdispatch import (
    BatchingFallbackWarning,
    KernelTypeError,
    Library,
    OperatorNotFoundError,
    RegistrationError,
    Tensor,
    TransformError,
    capture_dispatch_trace,
    func,
    ops,
    register_vmap,
    vmap,
)
from opdispatch import array_api as xp

X = np.arange(6.0).reshape(3, 2)
ROW = np.array([1.0, 10.0])


@pytest.fixture
def lib():
    with Library("batched", "DEF") as library:
        yield library


def test_an_operator_without_a_rule_is_called_for_each_sample(lib):
    lib.define("cube(Tensor x, *, float by=1.0) -> Tensor")
    lib.impl("cube", lambda x, *, by: Tensor(x.array**3 * by), "CPU")
    with pytest.warns(BatchingFallbackWarning, match="batched::cube has no batching rule"):
        got = vmap(lambda a: ops.batched.cube(a, by=2.0))(X)
    np.testing.assert_array_equal(got, X**3 * 2)
    vmap(ops.batched.cube)(X)  # is warned about once, and warnings are errors here


@pytest.mark.filterwarnings("ignore::opdispatch.BatchingFallbackWarning")
def test_lists_and_writes_for_each_sample(lib):
    lib.define("both(Tensor[] xs) -> (Tensor[], int)")
    lib.impl("both", lambda xs: ([Tensor(x.array + 1) for x in xs], len(xs)), "CPU")
    lib.define("fill_(Tensor(a!) x, Tensor y) -> Tensor(a!)")

    def fill(x, y):
        x.array[...] = y.array
        return x

    lib.impl("fill_", fill, "CPU")
    first, second = vmap(lambda a: tuple(ops.batched.both([a, Tensor(ROW)])[0]))(X)
    np.testing.assert_array_equal(first, X + 1)
    np.testing.assert_array_equal(second, np.stack([ROW + 1] * 3))

    def write(a, b):
        assert ops.batched.fill_(a, b) is a
        return a

    np.testing.assert_array_equal(vmap(write)(X.copy(), X + 5), X + 5)
    with pytest.raises(TransformError, match="it cannot hold the values of all samples"):
        vmap(write, in_dims=(None, 0))(ROW.copy(), X)


@pytest.mark.filterwarnings("ignore::opdispatch.BatchingFallbackWarning")
@pytest.mark.parametrize(
    ("schema", "kernel", "reason"),
    [
        (
            "f(Tensor x) -> float",
            lambda x: float(x.array.sum()),
            "values that are not tensors, such as 1.0",
        ),
        ("f(Tensor x) -> Tensor", lambda x: x[: int(x.array[0])], r"shapes \[0\] and \[2\]"),
        ("f(Tensor x) -> Tensor[]", lambda x: [x] * int(x.array[0]), "of different lengths"),
        ("f(Tensor(a) x) -> Tensor(a)", lambda x: x, "gives views of its arguments"),
    ],
)
def test_loop_over_samples_refuses_results_it_cannot_stack(lib, schema, kernel, reason):
    lib.define(schema)
    lib.impl("f", kernel, "CPU")
    with pytest.raises(TransformError, match=reason):
        vmap(lambda a: (ops.batched.f(a), a)[1])(X)


def test_a_loop_over_nothing(lib):
    lib.define("g(Tensor x) -> Tensor")
    lib.impl("g", lambda x: x, "CPU")
    with (
        pytest.warns(BatchingFallbackWarning),
        pytest.raises(TransformError, match="an empty batch"),
    ):
        vmap(ops.batched.g)(np.zeros((0, 2)))


def test_a_composite_operator_is_what_it_calls(lib):
    lib.define("dot(Tensor x, Tensor y) -> Tensor")
    lib.impl("dot", lambda x, y: xp.sum(x * y))
    np.testing.assert_array_equal(vmap(ops.batched.dot, in_dims=(0, None))(X, ROW), X @ ROW)
    got = vmap(func.grad(ops.batched.dot, argnums=1), in_dims=(0, None))(X, ROW)
    np.testing.assert_array_equal(got, X)


def test_a_decomposition_by_the_alias_key(lib):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: Tensor(x.array * 2), "CPU")
    lib.impl("twice", lambda x: x + x, "FuncTorchBatchedDecomposition")
    with capture_dispatch_trace() as lines:
        np.testing.assert_array_equal(vmap(ops.batched.twice)(X), X * 2)
    assert [line.key for line in lines if line.operator == "array::add.Tensor"] == [
        *("FuncTorchBatched", "AutogradCPU", "CPU")
    ]


def test_a_registered_rule(lib):
    lib.define("square(Tensor x, float by=1.0) -> Tensor")
    lib.impl("square", lambda x, by=1.0: Tensor(x.array**2 * by), "CPU")
    seen = []

    @register_vmap("batched::square", lib=lib)
    def rule(info, in_dims, x, by):
        seen.append((info.batch_size, info.randomness, in_dims, x.shape))
        return xp.matrix_transpose(ops.batched.square(x, by)), 1

    np.testing.assert_array_equal(vmap(lambda a: ops.batched.square(a, 3.0))(X), X**2 * 3)
    assert seen == [(3, "error", (0, None), (3, 2))]

    def backward(ctx, grad):
        [x] = ctx.saved_tensors
        return grad * 2 * x, None

    lib.register_autograd(
        "square",
        backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    per_sample = vmap(func.grad(lambda a: xp.sum(ops.batched.square(a))))
    np.testing.assert_array_equal(per_sample(X), 2 * X)
    of_all = func.grad(lambda a: xp.sum(vmap(ops.batched.square)(a)))
    np.testing.assert_array_equal(of_all(Tensor(X)), 2 * X)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda x: x, "expected a pair"),
        (lambda x: (x, 5), r"dimension 5 for a result of shape \[3, 2\]"),
        (lambda x: (xp.sum(x), 0), r"dimension 0 for a result of shape \[\]"),
        (lambda x: (x, 1), "for a batch of 3"),
        (lambda x: (x, (0, 0)), r"the dimension \(0, 0\)"),
        (lambda x: (3, 0), "3, which is not a tensor"),
    ],
)
def test_a_rule_that_returns_something_else(lib, returned, reason):
    lib.define("h(Tensor x) -> Tensor")
    register_vmap("batched::h", lambda info, in_dims, x: returned(x), lib=lib)
    with pytest.raises(TransformError, match=f"the batching rule of batched::h .*{reason}"):
        vmap(ops.batched.h)(X)


def test_rules_that_cannot_be_registered(lib):
    lib.define("named(Tensor x, *, Tensor y) -> Tensor")
    with pytest.raises(RegistrationError, match="keyword-only argument 'y' is a tensor"):
        register_vmap("batched::named", print, lib=lib)
    with pytest.raises(OperatorNotFoundError):
        register_vmap("batched::missing", print, lib=lib)
    lib.define("h(Tensor x) -> Tensor")
    with pytest.raises(KernelTypeError, match="a batching rule must be callable, and 3 is not"):
        register_vmap("batched::h", 3, lib=lib)


# -- randomness ----------------------------------------------------------------------------------


@pytest.fixture
def noise(lib):
    rng = np.random.default_rng(0)
    lib.define("draw(int[] shape) -> Tensor", tags="nondeterministic_seeded")
    lib.impl("draw", lambda shape: Tensor(rng.random(shape)), "CompositeExplicitAutograd")
    lib.define("noise(Tensor x) -> Tensor", tags="nondeterministic_seeded")
    lib.impl("noise", lambda x: Tensor(x.array + rng.random(x.shape)), "CPU")
    return ops.batched


def test_random_operators_are_refused_unless_they_are_expected(noise):
    for function in (noise.noise, lambda a: a + noise.draw([2])):
        with pytest.raises(TransformError, match=r"is random, .*randomness=.different."):
            vmap(function)(X)


def test_different_random_numbers(noise):
    for function in (
        lambda a: noise.noise(a) - a,
        lambda a: a * 0 + noise.draw([2]),
        lambda a: a * 0 + noise.noise(Tensor(ROW)),
    ):
        drawn = np.asarray(vmap(function, randomness="different")(X))
        assert len(np.unique(drawn.round(12))) == X.size


def test_the_same_random_numbers(noise):
    drawn = np.asarray(vmap(lambda a: a * 0 + noise.draw([2]), randomness="same")(X))
    assert len(np.unique(drawn)) == 2
    assert (drawn == drawn[0]).all()
    with pytest.raises(TransformError, match="cannot have the same random numbers"):
        vmap(noise.noise, randomness="same")(X)


def test_a_random_operator_may_have_a_rule(noise, lib):
    register_vmap("batched::noise", lambda info, in_dims, x: (x * 0, 0), lib=lib)
    np.testing.assert_array_equal(vmap(noise.noise)(X), X * 0)
