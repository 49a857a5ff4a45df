"""``functionalize`` with the other transforms, one around the other."""

import numpy as np
import pytest

from opdispatch import BatchingFallbackWarning, Tensor, func, functionalize, profile, trace, vmap
from opdispatch import array_api as xp

pytestmark = pytest.mark.filterwarnings(f"error::opdispatch.{BatchingFallbackWarning.__name__}")

X = np.arange(24.0).reshape(2, 3, 4)


def write_and_square(x):
    row = x[0]
    row[...] = row * 2
    x[1:, 0] = 1.0
    return xp.sum(x**2) + row[0]


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_functionalized_functions_of_samples(remove):
    def function(x):
        return write_and_square(+x)

    plain = functionalize(function, remove=remove)
    want = [float(function(Tensor(each))) for each in X]
    np.testing.assert_array_equal(vmap(plain)(Tensor(X)), want)
    np.testing.assert_array_equal(functionalize(vmap(function), remove=remove)(Tensor(X)), want)
    gradients = [np.asarray(func.grad(function)(Tensor(each))) for each in X]
    np.testing.assert_allclose(vmap(func.grad(plain))(Tensor(X)), gradients)
    of_all = functionalize(vmap(func.grad(function)), remove=remove)
    np.testing.assert_allclose(of_all(Tensor(X)), gradients)


def test_one_within_another_writes_to_what_it_is_given():
    def inner(x):
        x[0] = 5.0
        return x * 2

    def outer(x):
        doubled = functionalize(inner)(x)
        x[1] = -1.0
        return doubled + x

    x = Tensor(np.arange(3.0))
    result = functionalize(outer)(x)
    np.testing.assert_array_equal(x, [5, -1, 2])
    np.testing.assert_array_equal(result, [15, 1, 6])


def test_a_profile_sees_the_calls_of_a_transform():
    with profile() as prof:
        functionalize(vmap(lambda x: xp.exp(x)))(Tensor(X))
    assert "array::exp" in [event.name for event in prof.events()]


TRANSFORMS = {
    "grad": func.grad(lambda x: xp.sum(xp.sin(x) * x)),
    "vmap": vmap(lambda x: xp.sin(x) * x),
    "functionalize": functionalize(lambda x: write_and_square(+x)),
    "vmap of grad": vmap(func.grad(lambda x: xp.sum(xp.sin(x) * x))),
    "grad of functionalize": func.grad(functionalize(lambda x: xp.sum(write_and_square(+x)))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_trace_around_a_transform_has_the_calls_below_it(name):
    function = TRANSFORMS[name]
    graph = trace(function, Tensor(X))
    np.testing.assert_array_equal(graph(Tensor(X + 1)), function(Tensor(X + 1)))


def test_a_trace_within_a_transform_has_the_calls_as_they_are_made():
    def function(x):
        graphs.append(trace(lambda y: xp.sum(xp.sin(y) * y), x))
        return graphs[-1](x)

    graphs = []
    gradient = func.grad(function)(Tensor(X))
    np.testing.assert_allclose(gradient, TRANSFORMS["grad"](Tensor(X)))
    assert list(graphs[0].operators) == ["array::sin", "array::multiply.Tensor", "array::sum"]


def with_captured_tensors(x):
    captured = xp.sin(x)
    captured[0][...] = 2.0
    return vmap(lambda sample: sample + captured[0] * 3 + xp.sum(captured))(x)


def with_writes_around_a_gradient(x):
    captured = +x
    captured[0, 0] = 7.0
    gradient = func.grad(lambda y: xp.sum(y * captured))(x)
    captured[1] = 1.0
    return gradient + captured


def with_writes_to_samples(x):
    def write(sample):
        sample[0] = 9.0
        return sample

    vmap(write)(x)
    return x * 1.0


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize(
    "function", [with_captured_tensors, with_writes_around_a_gradient, with_writes_to_samples]
)
def test_transforms_within_share_what_is_written(function, remove):
    here, there = Tensor(X[0].copy()), Tensor(X[0].copy())
    want = function(here)
    np.testing.assert_array_equal(functionalize(function, remove=remove)(there), want)
    np.testing.assert_array_equal(there, here)


def test_gradients_of_functionalized_batches_read_no_elements():
    """``prod`` divides by its elements where it may look at them, which no batch lets it do."""
    x = xp.asarray([[1.0, 2.0, 3.0], [4.0, 0.0, 6.0]])
    gradients = vmap(functionalize(func.grad(xp.prod)))(x)
    np.testing.assert_array_equal(np.asarray(gradients), [[6, 3, 2], [0, 24, 0]])
