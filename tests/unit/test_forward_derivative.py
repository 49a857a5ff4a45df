"""Forward mode of the array library's operators, beside their derivatives backward."""

import numpy as np
import pytest

from opdispatch import Tensor, func
from opdispatch import array_api as xp
from tests.unit.close_tensors import close
from tests.unit.derivative_calls import CALLS, Call

INF, NAN = np.inf, np.nan
SPECIAL = {
    "a power of zero": (lambda x: x ** xp.asarray([0.0, 1.0, 2.0]), [0.0, 0.0, 0.0], [0, 1, 0]),
    "zero to a power": (lambda x: 0.0**x, [1.0, 0.0, 2.0], [0, 0, 0]),
    "the norm of zeros": (xp.linalg.vector_norm, [0.0, 0.0], [0, 0]),
    "a norm of zeros": (lambda x: xp.linalg.vector_norm(x, ord=3), [0.0, 0.0], [0, 0]),
    "a product with an infinity": (xp.prod, [INF, 1.0, 2.0], [2, INF, INF]),
    "a product with zeros": (xp.prod, [0.0, 1.0, 2.0], [2, 0, 0]),
    "a cumulative product with an infinity": (
        lambda x: xp.cumulative_prod(x)[1:],
        [1.0, INF, 2.0],
        [INF, 3, INF],
    ),
    "a sign of zero": (lambda x: xp.copysign(x, -1.0), [0.0, 2.0, -INF], [0, -1, 1]),
    "a deviation of what is equal": (xp.std, [1.0, 1.0, 1.0], [0, 0, 0]),
    "the larger of two that are equal": (lambda x: xp.maximum(x, 1.0), [1.0, 0.0], [0.5, 0]),
    "the largest of several": (xp.max, [1.0, 1.0, 0.0], [0.5, 0.5, 0]),
}


@pytest.mark.parametrize("what", SPECIAL)
def test_tangents_at_special_points(what):
    """Column by column, and beside backward mode."""
    function, at, want = SPECIAL[what]
    at, eye = np.array(at), np.eye(len(at))
    with np.errstate(all="ignore"):
        columns = [np.sum(func.jvp(function, (at,), (each,))[1]) for each in eye]
        gradient = func.grad(lambda x: xp.sum(function(x)))(at)
    np.testing.assert_array_equal(columns, want)
    np.testing.assert_array_equal(gradient, want)


def inner_product(ones, others):
    """Of real and imaginary parts."""
    return sum(np.sum((np.asarray(a) * np.conj(b)).real) for a, b in zip(ones, others, strict=True))


def forward_beside_backward(call, rng):
    """<J v, u> = <v, J^H u>, of an operator's differentiable arguments and results."""
    function, leaves = call.checked()
    arrays = [np.array(leaf.array) for leaf in leaves]
    places = [n for n, each in enumerate(arrays) if each.dtype.kind in "fc"]

    def of_places(*given):
        every = [Tensor(each) for each in arrays]
        for place, each in zip(places, given, strict=True):
            every[place] = +each  # a copy may be written to
        result = function(*every)
        found = list(result) if isinstance(result, list | tuple) else [result]
        return [each for each in found if each.dtype.kind in "fc"]

    primals = [Tensor(arrays[place]) for place in places]
    if not primals or not of_places(*primals):
        return 0

    def direction(like):
        parts = rng.normal(size=(2, *like.shape))
        return (parts[0] + (1j * parts[1] if like.dtype.kind == "c" else 0)).astype(like.dtype)

    results, forward = func.linearize(of_places, *primals)
    _, back = func.vjp(of_places, *primals)
    tangents, cotangents = list(map(direction, primals)), list(map(direction, results))
    one = inner_product(forward(*tangents), cotangents)
    gradients = back([Tensor(each) for each in cotangents])
    np.testing.assert_allclose(one, inner_product(tangents, gradients), rtol=1e-6, atol=1e-9)
    return 1


def test_every_derivative_forward():
    chosen = {}
    for call in CALLS:
        kinds = "".join(sorted({each.dtype.kind for each in call.arrays} & set("fc")))
        chosen.setdefault((call.operator, kinds), call)
    rng = np.random.default_rng(0)
    compared = 0
    for call in chosen.values():
        try:
            compared += forward_beside_backward(call, rng)
        except Exception as error:
            error.add_note(repr(call))
            raise
    assert compared > 100


@pytest.mark.parametrize(
    ("operator", "shape", "options"),
    [
        *((name, (3, 3), {}) for name in ("eigh", "eig", "cholesky")),
        *(("svd", shape, {"full_matrices": False}) for shape in ((3, 3), (2, 3), (3, 2))),
        *(("qr", shape, {}) for shape in ((3, 3), (2, 3), (2, 4, 3))),
    ],
)
def test_decompositions_of_complex_matrices_forward(operator, shape, options):
    """Also in what does not matter: how vectors that are not unique turn."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    if operator in ("eigh", "eig", "cholesky"):
        x = x @ x.conj().T + np.eye(3)
    assert forward_beside_backward(Call(f"linalg_{operator}", x, **options), rng) == 1


def test_second_derivatives_of_powers_exist_at_zero():
    exponents = np.array([0.0, 1.0, 2.0, 3.0])

    def function(x):
        return x**exponents

    zeros, ones = np.zeros(4), np.ones(4)
    for first in (
        lambda x: func.jvp(function, (x,), (Tensor(ones),))[1],
        func.grad(lambda x: xp.sum(function(x))),
    ):
        close(func.jvp(first, (zeros,), (ones,))[1], [0, 0, 2, 0])
        close(func.grad(lambda x, first=first: xp.sum(first(x)))(zeros), [0, 0, 2, 0])


def test_second_derivatives_of_norms_exist_beside_infinite_factors():
    with np.errstate(all="ignore"):
        found = func.hessian(lambda x: INF * xp.linalg.vector_norm(x))(np.array([1.0, 2.0]))
        np.testing.assert_array_equal(found, [[INF, -INF], [-INF, INF]])
        mixed = func.grad(
            lambda x, y: xp.sum(func.grad(lambda x: y * xp.linalg.vector_norm(x))(x)), argnums=1
        )
        np.testing.assert_array_equal(mixed(np.zeros(2), INF), 0.0)


@pytest.mark.parametrize(
    "function",
    [
        xp.abs,
        lambda x: xp.copysign(x, -1.0),
        *(lambda x, ord=ord: xp.linalg.vector_norm(x, ord=ord) for ord in (1, INF, -INF)),
        *(lambda x, ord=ord: xp.linalg.matrix_norm(x, ord=ord) for ord in (1, INF, -1, -INF)),
    ],
)
def test_second_derivatives_of_sizes_are_zero_beside_infinite_factors(function):
    def first(x):
        with np.errstate(all="ignore"):
            return func.grad(lambda x: xp.sum(function(x * INF)))(x)

    x = np.array([[1.0, -2.0], [3.0, 0.5]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(func.grad(lambda x: xp.sum(first(x)))(x), np.zeros((2, 2)))


def test_the_sign_of_a_small_complex_number_moves_across_alone():
    """A rounding along it would be divided by its size."""
    x = np.array([1e-9, -3e-9, 7e-12]) + 0j
    gradient = func.grad(lambda x: xp.real(xp.sum(3.7 * xp.sign(x))))(x)
    np.testing.assert_array_equal(gradient, np.zeros(3))
    turned = func.grad(lambda x: xp.imag(xp.sum(xp.sign(x))))(x)
    close(turned, 1j / abs(x))


def test_derivatives_by_an_exponent_of_zero_stay_zero():
    x, y = np.array([0.0, 1.0]), np.array([0.5, 2.0])
    with np.errstate(all="ignore"):
        by_exponent = func.jacrev(lambda x, y: xp.pow(x, y), argnums=1)
        found = func.grad(lambda x, y: xp.sum(by_exponent(x, y)), argnums=1)(x, y)
        np.testing.assert_array_equal(found, [0, 0])
        found = func.jacfwd(func.grad(lambda x, y: xp.sum(x**y), argnums=1))(x, y)
        np.testing.assert_array_equal(found, [[0, 0], [0, 1]])


def test_second_derivatives_of_a_cumulative_product_exist_before_an_infinity():
    with np.errstate(all="ignore"):
        first = func.grad(lambda x: xp.sum(xp.cumulative_prod(x)))
        found = func.jacrev(first)(np.array([1.0, 2.0, INF]))
    assert found[0, 1] == found[1, 0] == INF
    assert (found[0, 2], found[1, 2]) == (2, 1)


@pytest.mark.parametrize("inner", [func.jacfwd, func.jacrev])
@pytest.mark.parametrize(("function", "sign"), [(xp.asin, 1), (xp.acos, -1), (xp.acosh, -1)])
def test_second_derivatives_are_infinite_at_the_end_of_the_domain(function, sign, inner):
    with np.errstate(all="ignore"):
        found = func.jacrev(inner(function))(np.array([1.0, 0.5]))
    assert found[0, 0, 0] == sign * INF


@pytest.mark.parametrize(
    "function",
    [
        lambda x: xp.linalg.solve(x, x @ x + 1.0),
        xp.linalg.det,
        lambda x: xp.linalg.slogdet(x).logabsdet,
        lambda x: xp.cumulative_prod(x * xp.asarray([1.0, 0.0, 2.0]), axis=1),
    ],
)
def test_second_derivatives_are_the_same_whichever_mode_is_inside(function):
    x = np.random.default_rng(0).standard_normal((3, 3)) + 2 * np.eye(3)
    want = func.jacrev(func.jacrev(function))(x)
    for outer in (func.jacfwd, func.jacrev):
        close(outer(func.jacfwd(function))(x), want)
    step = 1e-6
    moved = np.zeros_like(x)
    moved[0, 1] = step
    slopes = [np.asarray(func.jacfwd(function)(x + each)) for each in (moved, -moved)]
    numerical = (slopes[0] - slopes[1]) / (2 * step)
    np.testing.assert_allclose(np.asarray(want)[..., 0, 1], numerical, rtol=1e-5, atol=1e-6)


def test_det_moves_where_there_is_no_inverse():
    x = np.array([[1.0, 2.0], [2.0, 4.0]]) + 0j
    close(func.jvp(xp.linalg.det, (x,), (np.eye(2) + 0j,))[1], 5.0 + 0j)


def test_the_size_of_nan_has_no_derivative():
    x = np.array([NAN, -2.0])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(xp.sign(Tensor(x)), [NAN, -1.0])
        np.testing.assert_array_equal(func.grad(lambda x: xp.sum(xp.abs(x)))(x), [NAN, -1.0])
        np.testing.assert_array_equal(func.jvp(xp.abs, (x,), (np.ones(2),))[1], [NAN, -1.0])
        of_norm = func.grad(lambda x: xp.linalg.vector_norm(x, ord=1))
        np.testing.assert_array_equal(of_norm(x), [NAN, -1.0])


def test_complex_powers_of_zero_are_numpys():
    zero = np.zeros(1, complex)
    np.testing.assert_array_equal(xp.pow(Tensor(zero), Tensor(zero)), zero**zero)


def test_a_limit_of_nan_leaves_the_tangent_of_what_is_clipped():
    """As PyTorch, where the gradient is zero."""
    x, low, high = np.array([3.0, -3.0, 0.5]), np.array([NAN, 0.0, 0.0]), np.ones(3)
    with np.errstate(all="ignore"):
        _, moved = func.jvp(xp.clip, (x, low, high), (np.ones(3), 2 * np.ones(3), 3 * np.ones(3)))
    np.testing.assert_array_equal(moved, [3, 2, 1])
    _, moved = func.jvp(xp.clip, (x[2:], low[:1], high[:1]), (np.ones(1), np.ones(1), np.ones(1)))
    np.testing.assert_array_equal(moved, [1])
