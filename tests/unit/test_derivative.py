"""The derivatives of the operators of the library ``array``, beside differences of their values."""

import math

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, func, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import grad, gradcheck, gradgradcheck
from opdispatch.fake_tensor import FakeTensorMode
from opdispatch.native.array.derivatives import DERIVATIVES, VIEWS
from opdispatch.native.array.derivatives.no_derivative import CONSTANT
from opdispatch.native.array.operators.functions import FUNCTIONS
from opdispatch.native.array.operators.indexing import INDEXING
from tests.unit.derivative_calls import CALLS, FUNCTIONAL_VARIANTS, complex_, leaf, real

OPERATOR_NAMES = [str(function.schema.name) for function in (*FUNCTIONS, *INDEXING)]


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_gradients_are_what_differences_say(call):
    function, inputs = call.checked()
    assert gradcheck(function, inputs)


@pytest.mark.parametrize("call", [call for call in CALLS if call.second], ids=repr)
def test_second_derivatives_are_what_differences_say(call):
    function, inputs = call.checked()
    assert gradgradcheck(function, inputs)


# -- the table -------------------------------------------------------------------------------------


def test_every_operator_has_a_derivative_or_a_reason_to_have_none():
    of_integers = ("and", "left_shift", "or", "right_shift", "xor")
    none_in_torch = [f"unique_{name}" for name in ("all", "counts", "inverse", "values")]
    without = [
        *(
            f"{name}.{overload}"
            for name in (*(f"bitwise_{n}" for n in of_integers), "nextafter")
            for overload in ("Tensor", "Scalar", "ScalarFirst")
        ),
        "bitwise_invert",
        *none_in_torch,
    ]
    accounted = [*DERIVATIVES.keys() - FUNCTIONAL_VARIANTS, *CONSTANT, *without]
    creation = [str(f.schema.name) for f in FUNCTIONS if f.is_creation]
    assert sorted([*accounted, *creation]) == sorted(OPERATOR_NAMES)


def test_every_formula_is_checked():
    called = {call.operator for call in CALLS}
    writes = {"copy_", "setitem_.Scalar", "setitem_.Tensor"}
    assert {name.removesuffix(".default") for name in DERIVATIVES} - called == writes


def test_constant_functions_are_not_recorded():
    x = leaf(real(3))
    for name in ("zeros_like", "ones_like", "empty_like"):
        assert not getattr(xp, name)(x).requires_grad
    assert not xp.full_like(x, 2.0).requires_grad
    assert not (x > 0).requires_grad
    assert not xp.argmax(x).requires_grad


def test_views_are_those_whose_schemas_say_so():
    functions = (*FUNCTIONS, *INDEXING)
    assert sorted(VIEWS) == sorted(
        str(function.schema.name)
        for function in functions
        if function.schema.arguments[0].alias_info is not None and not function.schema.is_mutable
    )


def test_equal_extrema_share_their_gradient():
    for name in ("max", "min"):
        x = leaf(np.array([[2.0, 1.0, 2.0], [1.0, 2.0, 2.0]]))
        [found] = grad(xp.sum(getattr(xp, name)(x, axis=1)), x)
        expected = [[0.5, 0, 0.5], [0, 0.5, 0.5]] if name == "max" else [[0, 1, 0], [1, 0, 0]]
        assert found.array.tolist() == expected
    x, y = leaf(np.array([1.0, 2.0])), leaf(np.array([1.0, 3.0]))
    assert [each.array.tolist() for each in grad(xp.sum(xp.maximum(x, y)), [x, y])] == [
        *([0.5, 0], [0.5, 1])
    ]


def test_gradient_of_maximum_and_minimum_at_nan_goes_to_both():
    x, y = leaf(np.array([np.nan, 1.0])), leaf(np.array([1.0, np.nan]))
    for function in (xp.maximum, xp.minimum):
        for found in grad(xp.sum(function(x, y)), [x, y]):
            assert found.array.tolist() == [1, 1]


def test_the_angle_of_the_origin_has_the_derivative_zero():
    x, y = leaf(np.zeros(2)), leaf(np.array([0.0, 2.0]))
    found = [each.array.tolist() for each in grad(xp.sum(xp.atan2(x, y)), [x, y])]
    assert found == [[0, 0.5], [0, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("rows", [3, 7])
def test_the_deviation_of_equal_numbers_has_the_derivative_zero(dtype, rows):
    # Of tenths, the mean of some is not the number itself, and their deviation not quite zero.
    numbers = np.arange(1, 50).astype(dtype) / 10
    x = Tensor(np.tile(numbers, (rows, 1)), requires_grad=True)
    (of_x,) = grad(xp.sum(xp.std(x, axis=0)), [x], create_graph=True)
    (again,) = grad(of_x, [x], Tensor(np.arange(rows * 49).reshape(rows, 49).astype(dtype)))
    assert not of_x.array.any()
    assert not again.array.any()


def test_many_from_the_same_place_are_added_up():
    x = leaf(real(5))
    places = np.random.default_rng(0).integers(0, 5, 1000)
    weights = np.random.default_rng(1).standard_normal(1000)
    [found] = grad(xp.sum(xp.take(x, Tensor(places)) * Tensor(weights)), x)
    np.testing.assert_allclose(found.array, np.bincount(places, weights))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_one_of_many_columns_has_the_gradient_whatever_type_its_place_has(dtype):
    x = leaf(np.zeros((3, 300)))
    places = np.array([[255], [0], [7]], dtype)
    [of_x] = grad(xp.sum(xp.take_along_axis(x, places)), x)
    assert of_x.shape == (3, 300)
    np.testing.assert_array_equal(np.argwhere(of_x.array), [[0, 255], [1, 0], [2, 7]])


def test_eigenvectors_of_any_phase_have_the_same_derivative():
    """Check functions of the directions alone: complex eigenvalues, and complex matrices."""
    weights = Tensor(real(3, 3))
    for x in (real(3, 3), complex_(3, 3)):

        def loss(values):
            found = xp.linalg.eig(values)
            sizes = xp.abs(found.eigenvectors) ** 2
            return xp.sum(sizes * weights * xp.expand_dims(xp.abs(found.eigenvalues), 0))

        assert gradcheck(loss, [leaf(x)])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: xp.linalg.qr(leaf(real(3, 2)), mode="complete")[1], "mode='complete'"),
        (lambda: xp.linalg.svd(leaf(real(3, 2)))[0], "full_matrices=True have no derivative"),
    ],
)
def test_decompositions_that_are_not_unique_have_none(call, message):
    with pytest.raises(AutogradError, match=message):
        xp.sum(call()).backward()


def test_the_gradient_of_eigh_is_hermitian_and_does_not_grow_as_values_come_together():
    """Of the square root of a matrix, which depends on no vectors: sqrt'(A) is 1/2 on ones."""
    near = 1e-9
    a = leaf(np.array([[1, near, 0], [near, 1, 0], [0, 0, 2.0]]))
    values, vectors = xp.linalg.eigh(a)
    root = (vectors * xp.sqrt(values)) @ vectors.mT
    [found] = grad(xp.sum(root[:2, :2] * xp.asarray([[1.0, 2.0], [4.0, 3.0]])), a)
    np.testing.assert_array_equal(found.array, found.array.T)
    np.testing.assert_allclose(found.array[:2, :2], [[0.5, 1.5], [1.5, 1.5]], rtol=1e-5)


def test_the_second_derivative_of_eigvalsh_is_symmetric_at_values_that_are_near():
    weights = Tensor(np.arange(9.0).reshape(3, 3))

    def gradient(a):
        return func.grad(lambda x: xp.sum(xp.linalg.eigvalsh(x) ** 2))(a)

    a = np.array([[1, 1e-7, 0], [1e-7, 1, 0], [0, 0, 2.0]])
    second = func.grad(lambda x: xp.sum(gradient(x) * weights))(a)
    np.testing.assert_allclose(np.asarray(second), np.asarray(weights + weights.mT), atol=1e-6)


def test_a_matrix_without_full_rank_spoils_the_gradient_of_qr_of_its_sample_alone():
    x = np.stack([real(3, 3), np.diag([1.0, 0, 1]), np.zeros((3, 3)), real(3, 3, seed=4)])
    each = vmap(func.grad(lambda a: xp.sum(xp.linalg.qr(a)[1])))(x)
    assert xp.all(xp.isfinite(each), axis=(1, 2)).array.tolist() == [True, False, False, True]
    np.testing.assert_allclose(
        np.asarray(each[3]), np.asarray(func.grad(lambda a: xp.sum(xp.linalg.qr(a)[1]))(x[3]))
    )


def test_det_has_every_derivative_where_there_is_no_inverse():
    zero, eye = np.zeros((3, 3)), np.eye(3)
    batch = np.stack([zero, np.diag([1.0, 0, 0]), np.diag([1.0, 1, 0]), eye])
    hessian = func.hessian(xp.linalg.det)
    for each in (np.stack([np.asarray(hessian(x)) for x in batch]), vmap(hessian)(batch)):
        np.testing.assert_allclose(np.asarray(each)[1, 1, 1, 2, 2], 1)
        np.testing.assert_allclose(np.asarray(each)[1, 1, 2, 2, 1], -1)
        np.testing.assert_allclose(np.asarray(each)[0], np.zeros((3, 3, 3, 3)))
        np.testing.assert_allclose(np.asarray(each)[3, 0, 0, 1, 1], 1)


@pytest.mark.parametrize(
    ("x1", "x2", "want"),
    [(1.0, -np.inf, 1), (-1.0, np.inf, 1), (1.0, np.inf, 0), (-1.0, -np.inf, 0), (5.0, -3.0, 2)],
)
def test_the_gradient_of_remainder_at_an_infinite_divisor(x1, x2, want):
    for call in (lambda x: xp.remainder(Tensor(np.array(x1)), x), lambda x: xp.remainder(x1, x)):
        assert float(func.grad(call)(x2)) == want


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ([math.inf, 1.0, 2.0], [3, math.inf, math.inf]),
        ([math.inf, 0.0, 2.0], [2, math.inf, math.inf]),
        ([1e200, 1e200, 1.0], [1e200, 1e200, 2e200]),
        ([0.0, math.nan, 2.0], [math.nan, 2, math.nan]),
        ([math.inf], [0]),
        ([], []),
    ],
)
def test_the_second_derivative_of_prod_is_of_the_other_factors_alone(numbers, want):
    x = leaf(np.array(numbers))
    with np.errstate(all="ignore"):
        [first] = grad(xp.prod(x), x, create_graph=True)
        [second] = grad(xp.sum(first), x)
    np.testing.assert_array_equal(second, want)


@pytest.mark.parametrize("name", ["nextafter", "unique_values"])
def test_operators_without_a_derivative_are_named(name):
    x = leaf(real(3))
    y = xp.nextafter(x, x) if name == "nextafter" else xp.unique_values(x)
    with pytest.raises(AutogradError, match=f"array::{name}.* has no derivative"):
        xp.sum(y).backward()


@pytest.mark.parametrize("make", [real, complex_])
def test_a_matrix_without_an_inverse_leaves_the_gradients_of_others(make):
    numbers = make(2, 2, 2)
    numbers[0] = [[1, 2], [2, 4]]
    x, regular = (Tensor(each, requires_grad=True) for each in (numbers, numbers[1].copy()))
    [found] = grad(xp.sum(xp.linalg.slogdet(x)[1]), x)
    [expected] = grad(xp.linalg.slogdet(regular)[1], regular)
    assert np.all(np.isnan(found.array[0]))
    assert np.allclose(found.array[1], expected.array)


def test_gradients_of_determinants_without_elements():
    for name in ("det", "slogdet"):
        with FakeTensorMode():
            x = xp.ones((3, 2, 2))
            x.requires_grad = True
            result = getattr(xp.linalg, name)(x)
            [found] = grad(xp.sum(result if name == "det" else result[1]), x)
        assert found.shape == (3, 2, 2)


@pytest.mark.parametrize("ord", [1, 2, "nuc", math.inf])
def test_gradients_of_matrix_norms_without_elements(ord):
    if ord in (1, 2) and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("NumPy before 2.3 has no such norm")
    x = Tensor(np.ones((2, 3, 0)), requires_grad=True)
    [gradient] = grad(xp.sum(xp.linalg.matrix_norm(x, ord=ord)), x)
    assert gradient.shape == x.shape


def test_gradients_of_the_other_byte_order():
    x = Tensor(np.array([1.0, 2.0, 3.0], ">f4"), requires_grad=True)
    for function in (
        lambda x: xp.repeat(x, 2),
        lambda x: xp.tile(x, (2,)),
        lambda x: xp.broadcast_to(x, (2, 3)),
        lambda x: xp.concat([x, x]),
    ):
        [gradient] = grad(xp.sum(function(x)), x)
        np.testing.assert_array_equal(gradient, [2, 2, 2])
