"""The graph that calls record, and the backward pass through it."""

import gc
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    Tensor,
    TorchDispatchMode,
    enable_grad,
    inference_mode,
    no_grad,
)
from opdispatch import array_api as xp
from opdispatch.autograd import backward, grad
from tests.unit.leaf_tensors import leaf


@pytest.fixture
def x():
    return leaf(1.0, 2.0, 3.0)


# -- what is recorded ------------------------------------------------------------------------------


def test_a_call_with_a_tensor_that_requires_gradients_is_recorded(x):
    y = xp.sin(x) * 2.0
    assert y.requires_grad
    assert not y.is_leaf
    assert x.is_leaf
    assert y.grad_fn.name == "MultiplyBackward"
    [(sin, number)] = y.grad_fn.next_functions
    assert (sin.name, number) == ("SinBackward", 0)
    assert sin.next_functions[0][0].variable is x


def test_calls_without_gradients_are_not_recorded(x):
    plain = Tensor(np.ones(3))
    assert xp.sin(plain).grad_fn is None
    with no_grad():
        assert not (x * 2).requires_grad
        with enable_grad():
            assert (x * 2).requires_grad
    with inference_mode():
        assert not (x * 2).requires_grad
    assert not (x > 1).requires_grad
    assert not xp.sin(x.detach()).requires_grad


@pytest.mark.parametrize(
    ("numpys", "ours"),
    [
        (lambda x: np.float64(2) * x, lambda x: 2.0 * x),
        (lambda x: np.sqrt(2) / x, lambda x: 2**0.5 / x),
        (lambda x: np.array([1.0, 2.0, 3.0]) + x, lambda x: x + Tensor(np.array([1.0, 2.0, 3.0]))),
        (lambda x: np.eye(3) @ x, lambda x: Tensor(np.eye(3)) @ x),
        (np.sin, xp.sin),
        (lambda x: np.arctan2(x, 2.0), lambda x: xp.atan2(x, 2.0)),
        (lambda x: np.power(x, 3), lambda x: x**3),
    ],
)
def test_functions_of_numpy_are_recorded_where_there_is_an_operator(x, numpys, ours):
    found, expected = numpys(x), ours(x)
    assert found.requires_grad
    assert found.dtype == expected.dtype
    assert found.array.tolist() == expected.array.tolist()
    weights = Tensor(np.array([1.0, -2.0, 0.5]))
    for each, other in zip(grad(found, x, weights), grad(expected, x, weights), strict=True):
        assert each.array.tolist() == other.array.tolist()
    for plain in (x.detach(), Tensor(np.ones(3))):
        assert type(numpys(plain)) is np.ndarray
    with no_grad():
        assert type(numpys(x)) is np.ndarray


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (np.sum, "add.reduce"),
        (np.cbrt, "cbrt"),
        (lambda x: np.add(x, 1.0, out=np.ones(3)), "add"),
        (lambda x: np.ones(3).__iadd__(x), "add"),
    ],
)
def test_other_functions_of_numpy_would_lose_a_history(x, call, named):
    with pytest.raises(AutogradError, match=rf"np\.{named} was called with a tensor that requires"):
        call(x)
    call(x.detach())


def test_requires_grad_is_for_leaves_of_numbers_with_derivatives(x):
    with pytest.raises(AutogradError, match="floating-point and complex types"):
        Tensor(np.ones(3, np.int64), requires_grad=True)
    y = x * 2
    with pytest.raises(AutogradError, match="can only be changed of a leaf"):
        y.requires_grad = False
    y.requires_grad = True
    assert Tensor(np.ones(2)).requires_grad_().requires_grad
    assert not x.requires_grad_(False).requires_grad


# -- backward and grad -----------------------------------------------------------------------------


def test_gradients_add_up_at_the_leaves(x):
    y = leaf(4.0, 5.0, 6.0)
    xp.sum(x * y + x).backward()
    assert (x.grad.array == y.array + 1).all()
    assert (y.grad.array == x.array).all()
    xp.sum(x * y).backward()
    assert (x.grad.array == 2 * y.array + 1).all()
    x.grad = None
    assert x.grad is None


def test_a_gradient_is_given_for_more_than_one_element(x):
    y = x * x
    with pytest.raises(AutogradError, match=r"one element only, and tensor 0 has shape \[3\]"):
        y.backward()
    y.backward(xp.asarray([1.0, 0.0, 2.0]))
    assert x.grad.array.tolist() == [2, 0, 12]
    with pytest.raises(AutogradError, match=r"gradient 0 has shape \[2\].*\[3\]"):
        (x * x).backward(xp.ones(2))


def test_gradient_of_a_broadcast_argument_is_summed():
    x, row, number = leaf(*range(6)), leaf(1.0, 2.0, 3.0), leaf(2.0)
    y = xp.reshape(x, (2, 3)) * row * number
    [of_row, of_number] = grad(xp.sum(y), [row, number])
    assert of_row.array.tolist() == [6, 10, 14]
    assert of_number.array.tolist() == [34]


def test_grad_leaves_the_leaves_alone(x):
    y = leaf(1.0, 1.0, 1.0)
    z = x * x
    [of_z, of_x] = grad(xp.sum(z * y), [z, x])
    assert of_z.array.tolist() == [1, 1, 1]
    assert of_x.array.tolist() == [2, 4, 6]
    assert x.grad is None
    assert y.grad is None
    with pytest.raises(AutogradError, match="input 1 of grad was not used"):
        grad(xp.sum(x * 2), [x, y])
    assert grad(xp.sum(x * 2), [x, y], allow_unused=True)[1] is None


def test_backward_for_some_of_the_leaves(x):
    y = leaf(1.0, 1.0, 1.0)
    z = x * y
    backward(xp.sum(z * z), inputs=[y, z])
    assert x.grad is None
    assert y.grad.array.tolist() == [2, 8, 18]
    assert z.grad.array.tolist() == [2, 4, 6]


def test_several_outputs_at_once(x):
    [total] = grad([xp.sum(x), x * 2], x, [None, xp.ones(3)])
    assert total.array.tolist() == [3, 3, 3]
    with pytest.raises(AutogradError, match="2 gradients were given for 1 tensors"):
        grad(xp.sum(x), x, [None, None])


def test_second_derivatives(x):
    [first] = grad(xp.sum(xp.exp(x) * x), x, create_graph=True)
    [second] = grad(xp.sum(first), x)
    np.testing.assert_allclose(second.array, (2 + x.array) * np.exp(x.array))


def test_complex_gradients_are_conjugate():
    z = leaf(1 + 2j, 3 - 1j, dtype=np.complex128)
    r = leaf(2.0, 3.0)
    [of_z, of_r] = grad(z * r * (2 - 1j), [z, r], xp.ones(2, dtype=xp.complex128))
    np.testing.assert_array_equal(of_z.array, np.conj(r.array * (2 - 1j)))
    np.testing.assert_array_equal(of_r.array, np.real(np.conj(z.array * (2 - 1j))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: grad(xp.sum(x * 1), xp.ones(3)), "does not require gradients"),
        (lambda x: xp.sum(xp.ones(3)).backward(), "does not require a gradient"),
        (lambda x: grad(xp.sum(x), []), "no inputs"),
        (lambda x: backward(xp.sum(x), inputs=[]), "given inputs=\\[\\]; omit inputs"),
        (lambda x: (x * 1).backward(xp.ones(3, dtype=xp.complex64)), "both are complex"),
        (lambda x: setattr(x, "grad", xp.ones(2)), r"shape \[2\].*shape \[3\]"),
        (lambda x: setattr(x, "grad", 1.0), "a Tensor or None, not float"),
    ],
)
def test_invalid_backward_raises_autograd_error(x, call, message):
    with pytest.raises(AutogradError, match=message):
        call(x)


# -- the graph -------------------------------------------------------------------------------------


def test_saved_values_are_released_after_the_backward_pass(x):
    y = xp.exp(x)
    total = xp.sum(y)
    kept = weakref.ref(y)
    del y
    total.backward(retain_graph=True)
    total.backward()
    with pytest.raises(AutogradError, match="a second time"):
        total.backward()
    gc.collect()
    assert kept() is None
    np.testing.assert_allclose(x.grad.array, 2 * np.exp(x.array))


def test_a_graph_goes_without_the_collector(x):
    gc.disable()
    try:
        y = xp.exp(x) * x
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_a_long_chain_needs_no_deep_stack(x):
    y = x
    for _ in range(30_000):
        y = y * 1.0
    xp.sum(y).backward()
    assert x.grad.array.tolist() == [1, 1, 1]
    del y


def test_hooks_see_and_replace_gradients(x):
    seen = []
    y = x * 2
    handle = y.register_hook(seen.append)
    x.register_hook(lambda gradient: gradient * 10)
    xp.sum(y).backward(retain_graph=True)
    assert [each.array.tolist() for each in seen] == [[1, 1, 1]]
    assert x.grad.array.tolist() == [20, 20, 20]
    handle.remove()
    handle.remove()
    xp.sum(y * 1).backward()
    assert len(seen) == 1
    with pytest.raises(AutogradError, match="requires no gradient"):
        xp.ones(3).register_hook(seen.append)


def test_a_tensor_in_between_retains_its_gradient_if_it_is_asked_to(x):
    y = x * 2
    y.retain_grad()
    z = y * 3
    xp.sum(z).backward()
    assert (y.grad.array.tolist(), z.grad) == ([3, 3, 3], None)
    with pytest.raises(
        AutogradError, match="retain_grad was called on a tensor that does not require"
    ):
        xp.ones(3).retain_grad()


def test_gradients_of_two_leaves_share_nothing(x):
    y = leaf(1.0, 1.0, 1.0)
    xp.sum(x + y).backward()
    x.grad[...] = 7.0
    assert y.grad.array.tolist() == [1, 1, 1]


def test_backward_pass_names_an_operator_without_a_derivative(define):
    double = define("m::double(Tensor x) -> Tensor", CPU=lambda x: Tensor(x.array * 2))
    x = leaf(1.0)
    y = double(x)
    assert y.requires_grad
    with pytest.raises(AutogradError, match=r"m::double has no derivative.*register_autograd"):
        xp.sum(y * 2).backward()
    assert not double(x.detach()).requires_grad


# -- methods that call no operator -----------------------------------------------------------------


def test_items_of_a_tensor_have_gradients():
    x = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]]), requires_grad=True)
    first, second = x.unbind()
    xp.sum(first * second).backward()
    assert x.grad.array.tolist() == [[3.0, 4.0], [1.0, 2.0]]


def test_another_layout_does_not_lose_gradients_without_a_word():
    pytest.importorskip("scipy")
    x = Tensor(np.eye(2), requires_grad=True)
    y = xp.sum(x.to_sparse().to_dense() * 2)
    assert y.requires_grad
    with pytest.raises(AutogradError, match="conversion to or from another layout"):
        y.backward()
    assert not x.detach().to_sparse().requires_grad


class _Noting(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self, noted):
        super().__init__()
        self.noted = noted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.noted.append(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16"])
@pytest.mark.parametrize("noted", [None, []], ids=["unobserved", "in a mode"])
def test_a_second_gradient_is_added_to_the_tensor_of_the_first(dtype, noted):
    x = Tensor(np.ones((2, 3), dtype), requires_grad=True)
    given = Tensor(np.arange(6, dtype=dtype).reshape(2, 3))
    (x * 1.0).backward(given)
    first = x.grad
    before = first._version
    with nullcontext() if noted is None else _Noting(noted):
        (x * 1.0).backward(given)
    assert x.grad is first
    assert first._version == before + 1
    assert first.dtype == dtype
    np.testing.assert_array_equal(np.asarray(first), np.arange(6).reshape(2, 3) * 2)
    assert noted is None or noted[-2:] == ["array::add", "array::setitem_"]


def test_a_gradient_is_not_added_to_elements_that_cannot_be_written_to():
    x = leaf([1.0, 2.0])
    backward(xp.sum(x * 1.0))
    x.grad.array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        backward(xp.sum(x * 1.0))
