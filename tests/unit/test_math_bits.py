"""Views of conjugates and of negatives: computed when they are needed, and not before."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    KernelFunction,
    MetaArray,
    NoKernelError,
    Tensor,
    capture_dispatch_trace,
    functionalize,
    register_backend,
    sparse_coo_tensor,
)
from opdispatch import array_api as xp
from opdispatch.arrays.math_bits import MathBitsArray
from opdispatch.autograd import grad
from tests.simulated_accelerator import Accelerator

K = DispatchKey
Z = np.array([[1 + 2j, 3 - 1j, 4j], [5 + 1j, -2, 1 - 1j]])


def conjugated():
    x = Tensor(Z.copy())
    return x, x.conj()


def same(tensor, expected):
    return np.array_equal(np.asarray(tensor), expected)


def test_a_conjugate_is_a_view_of_the_same_elements():
    x, c = conjugated()
    assert c.is_conj()
    assert not x.is_conj()
    assert K.Conjugate in c.key_set
    assert c.array.base is x.array
    assert same(c, Z.conj())
    assert repr(c) == repr(Tensor(Z.conj()))
    x[0, 0] = 7j
    assert complex(c[0, 0]) == c[0, 0].item() == -7j


def test_the_conjugate_of_one_is_the_tensor_again_and_of_a_real_tensor_itself():
    x, c = conjugated()
    assert c.conj().array is x.array
    assert c.conj().key_set == x.key_set
    real = Tensor(np.ones(2))
    assert real.conj() is real
    assert not xp.conj(x).is_conj()


def test_a_resolved_tensor_has_elements_of_its_own():
    x, c = conjugated()
    resolved = c.resolve_conj()
    assert type(resolved.array) is np.ndarray
    assert same(resolved, Z.conj())
    assert x.resolve_conj() is x
    assert x.resolve_neg() is x


VIEWS = {
    "getitem": lambda x: x[1:, ::2],
    "place": lambda x: x[0],
    "transposed": xp.matrix_transpose,
    "permute_dims": lambda x: xp.permute_dims(x, (1, 0)),
    "moveaxis": lambda x: xp.moveaxis(x, 0, 1),
    "reshape": lambda x: xp.reshape(x, (-1,)),
    "expand_dims": lambda x: xp.expand_dims(x, axis=0),
    "flip": xp.flip,
    "broadcast_to": lambda x: xp.broadcast_to(x, (2, 2, 3)),
    "unstack": lambda x: xp.unstack(x)[1],
    "diagonal": xp.linalg.diagonal,
    "detach": lambda x: x.detach(),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_keep_the_bits(view):
    _, c = conjugated()
    one, other = VIEWS[view](c), VIEWS[view](xp.imag(c))
    assert one.is_conj()
    assert other.is_neg()
    assert same(one, np.asarray(VIEWS[view](Tensor(Z.conj()))))
    assert same(other, np.asarray(VIEWS[view](Tensor(-Z.imag))))


def test_parts_of_a_conjugate_are_views():
    x, c = conjugated()
    real, imag = xp.real(c), xp.imag(c)
    assert not real.is_conj()
    assert not real.is_neg()
    assert imag.is_neg()
    assert imag.key_set.has(K.Negative)
    assert np.shares_memory(imag.array.base, x.array)
    assert same(imag, -Z.imag)
    assert same(imag.resolve_neg(), -Z.imag)
    assert not imag._neg_view().is_neg()


def test_operators_get_what_it_stands_for():
    x, c = conjugated()
    assert same(c + x, Z.conj() + Z)
    assert same(xp.stack([c, x]), np.stack([Z.conj(), Z]))
    assert same(c @ xp.matrix_transpose(c), Z.conj() @ Z.conj().T)
    assert same(-xp.imag(c), Z.imag)
    assert same(np.exp(c), np.exp(Z.conj()))


@pytest.mark.parametrize("write", ["some", "all", "places"])
def test_writes_go_to_the_elements_that_are_stored(write):
    x, c = conjugated()
    expected = Z.conj()
    index = {"some": (0, slice(1, None)), "all": ..., "places": np.array([1, 0])}[write]
    value = np.asarray(Z[index]) + 2j
    c[index] = Tensor(value)
    expected[index] = value
    assert c.is_conj()
    assert same(c, expected)
    assert same(x, expected.conj())
    imag = xp.imag(c)
    imag[0] = 9
    assert imag.is_neg()
    assert (x.array.imag[0] == -9).all()


def test_in_place_operator_returns_the_conjugate_view_itself(define):
    op = define("t::f_(Tensor(a!) x, Tensor(b!)[] y) -> (Tensor(a!), Tensor(b!)[])", CPU=add_one)
    (x, c), (y, d) = conjugated(), conjugated()
    first, [second, third] = op(c, [y, d])
    assert first is c
    assert second is y
    assert third is d
    assert same(x, Z + 1 + 1j)  # of the conjugates, that is 1 - 1j
    assert same(c, Z.conj() + 1 - 1j)


def add_one(x, y):
    for each in (x, *y):
        assert type(each.array) is np.ndarray
        each.array[...] += 1 - 1j
    return x, y


def test_an_operator_may_know_of_them_itself(define):
    seen = []

    def kernel(x):
        seen.append(type(x.array))
        return x

    op = define("t::f(Tensor x) -> Tensor", CPU=kernel, Conjugate=KernelFunction.fallthrough())
    op(conjugated()[1])
    assert seen == [MathBitsArray]


def test_calls_visit_the_keys():
    _, c = conjugated()
    for call, keys in (
        (lambda: c + 1, ["AutogradCPU", "Conjugate", "CPU"]),
        (lambda: xp.imag(c) + 1, ["AutogradCPU", "Negative", "CPU"]),
        (lambda: c.conj(), ["AutogradCPU", "ADInplaceOrView", "CPU"]),
    ):
        with capture_dispatch_trace() as lines:
            call()
        assert [line.key for line in lines][-len(keys) :] == keys


def test_gradients_go_through():
    x = Tensor(Z.copy(), requires_grad=True)
    c = x.conj()
    [found] = grad(xp.sum(xp.real(c * c * x)), x)
    [expected] = grad(xp.sum(xp.real(xp.conj(x) * xp.conj(x) * x)), x)
    np.testing.assert_allclose(found.array, expected.array)
    y = x * 1
    part = y.conj()[0]
    part[...] = 0
    [found] = grad(xp.sum(xp.real(y)), x)
    assert same(found, [[0, 0, 0], [1, 1, 1]])
    leaf = Tensor(Z.copy(), requires_grad=True)
    leaf.backward(Tensor(Z.copy()).conj())
    assert same(leaf.grad, Z.conj())


def test_functionalized_functions_write_through_them():
    def function(x):
        c = x.conj()
        c[0] = 5j
        xp.imag(c)[1] = 3
        return x * 1

    expected = Tensor(Z.copy())
    function(expected)
    for remove in ("mutations", "mutations_and_views"):
        x = Tensor(Z.copy())
        assert same(functionalize(function, remove=remove)(x), expected.array)
        assert same(x, expected.array)


def test_other_devices():
    meta = Tensor(MetaArray((2, 3), np.complex128)).conj()
    assert meta.is_conj()
    assert meta.device == "meta"
    assert (meta + 1).shape == (2, 3)
    registration = register_backend(Accelerator())
    try:
        there = Tensor(Z).to("privateuseone:1").conj()
        assert there.device == "privateuseone:1"
        assert there.key_set.has(K.Conjugate)
        assert same(there.to("cpu"), Z.conj())
    finally:
        registration.close()


def test_unsupported_uses_of_a_conjugate_view_raise():
    with pytest.raises(ArgumentError, match="only a dense array"):
        sparse_coo_tensor(np.array([[0, 1]]), np.array([1j, 2]), (3,)).conj()
    _, c = conjugated()
    with pytest.raises(ValueError, match="must be computed"):
        np.asarray(c, copy=False)
    with pytest.raises(BufferError):
        c.__dlpack__()


def test_copies_are_what_it_stands_for():
    _, c = conjugated()
    copy = xp.asarray(c, copy=True)
    assert type(copy.array) is np.ndarray
    assert same(copy, Z.conj())
    assert same(c.to("cpu"), Z.conj())


# -- zeros -----------------------------------------------------------------------------------------


def test_zeros_have_no_elements_until_they_are_needed():
    zeros = Tensor._efficientzerotensor((2, 3), dtype=np.float32)
    assert zeros._is_zerotensor()
    assert zeros.key_set.has(K.ZeroTensor)
    assert (zeros.shape, zeros.dtype, zeros.device) == ((2, 3), np.float32, "cpu")
    assert repr(zeros) == repr(Tensor(np.zeros((2, 3), np.float32)))
    assert same(zeros, np.zeros((2, 3)))


def test_operators_get_tensors_that_hold_zeros():
    zeros, x = Tensor._efficientzerotensor((3,)), Tensor(np.arange(3.0))
    for result in (zeros + x, x + zeros, xp.exp(zeros), xp.concat([x, zeros]), +zeros):
        assert not result._is_zerotensor()
    assert same(x + zeros, x.array)
    assert same(xp.exp(zeros), np.ones(3))
    x[1:] = zeros[1:]
    assert same(x, [0, 0, 0])


def test_views_and_products_of_zeros_are_zeros():
    zeros = Tensor._efficientzerotensor((2, 3))
    x = Tensor(np.ones((4, 1, 3)))
    for result, shape in (
        (zeros * x, (4, 2, 3)),
        (x * zeros, (4, 2, 3)),
        (zeros * 2, (2, 3)),
        (zeros[0], (3,)),
        (zeros.mT, (3, 2)),
        (xp.reshape(zeros, (-1,)), (6,)),
        (xp.unstack(zeros)[1], (3,)),
        (zeros.conj(), (2, 3)),
        (zeros.detach(), (2, 3)),
    ):
        assert result._is_zerotensor()
        assert result.shape == shape


def test_zeros_are_not_written_to():
    zeros = Tensor._efficientzerotensor((2, 3))
    for target in (zeros, zeros[0]):
        with pytest.raises(NoKernelError, match="which is a zero tensor"):
            target[0] = 1


def test_zeros_on_other_devices():
    zeros = Tensor._efficientzerotensor((2, 3), device="meta")
    assert zeros.device == "meta"
    assert (zeros + 1).shape == (2, 3)
    registration = register_backend(Accelerator())
    try:
        there = Tensor._efficientzerotensor((2,), device="privateuseone:1")
        assert there.device == "privateuseone:1"
        assert same(there.to("cpu"), [0, 0])
    finally:
        registration.close()


def test_gradients_of_and_through_zeros():
    x = Tensor(np.arange(3.0), requires_grad=True)
    zeros = Tensor._efficientzerotensor((3,))
    assert same(grad(xp.sum(x * zeros + x), x)[0], [1, 1, 1])
    x.backward(zeros)
    assert type(x.grad.array) is np.ndarray
    assert same(x.grad, [0, 0, 0])
