"""Arguments of ``backward`` and ``grad``, and how often the backward pass can run."""

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, no_grad, trace
from opdispatch import array_api as xp
from opdispatch.autograd import backward, grad
from tests.unit.leaf_tensors import leaf


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: backward("text"), "the tensors of backward are Tensors, and one of them is str"),
        (lambda x: backward(3), "the tensors of backward are a Tensor or a sequence"),
        (lambda x: backward([None]), "one of them is None"),
        (lambda x: backward(x * 2, "a"), "the gradients are Tensors, and one of them is str"),
        (lambda x: (x * 2).backward(1.0), "the gradients are a Tensor .* not float"),
        (lambda x: (x * 2).backward(np.ones(1)), "the gradients are a Tensor .* not ndarray"),
        (lambda x: (x * 2).backward(inputs="x"), "the inputs of backward are Tensors"),
        (lambda x: grad(x * 2, None), "the inputs of grad are a Tensor .* not NoneType"),
        (lambda x: grad(x * 2, [x, 1]), "the inputs of grad are Tensors, and one of them is int"),
        (lambda x: grad(None, x), "the outputs of grad are a Tensor .* not NoneType"),
    ],
)
def test_non_tensor_argument_is_named_in_the_error(call, text):
    with pytest.raises(AutogradError, match=text):
        call(leaf(1.0))


def test_materialize_grads_gives_zeros_for_unused_inputs():
    x, other = leaf(1.0), leaf(1.0, 2.0)
    of_x, of_other = grad(x * 2, [x, other], materialize_grads=True)
    assert (of_x.array.tolist(), of_other.array.tolist()) == ([2.0], [0.0, 0.0])
    with pytest.raises(AutogradError, match="contradicts"):
        grad(x * 2, x, materialize_grads=True, allow_unused=False)


def test_a_batch_of_gradients_goes_back_at_once():
    x, other = leaf(1.0, 2.0), leaf(1.0)
    y = xp.exp(x)
    rows = Tensor(np.eye(2))
    [jacobian] = grad(y, x, rows, retain_graph=True, is_grads_batched=True)
    assert np.array_equal(jacobian.array, np.diag(np.exp([1.0, 2.0])))
    found = grad(y, [other, x], [rows], is_grads_batched=True, allow_unused=True)
    assert found[0] is None
    assert found[1].shape == (2, 2)


def test_a_graph_that_has_kept_nothing_can_be_gone_through_again():
    x = leaf(1.0, 2.0)
    y = xp.sum(x + x)
    y.backward()
    y.backward()
    assert x.grad.array.tolist() == [4.0, 4.0]
    for of in (lambda x: x * x, lambda x: x * 2, xp.exp):
        z = xp.sum(of(x))
        z.backward()
        with pytest.raises(AutogradError, match="a second time"):
            z.backward()


def test_backward_is_recorded_in_a_trace():
    def gradient(x):
        weight = leaf(1.0, 2.0)
        xp.sum(weight * x * weight).backward()
        return weight.grad

    graph = trace(gradient, Tensor(np.array([1.0, 1.0])))
    assert graph(np.array([10.0, 100.0])).array.tolist() == [20.0, 400.0]


def test_zeros_for_unused_inputs_are_recorded_where_the_backward_pass_is():
    x, other = leaf(1.0), leaf(1.0)
    for create_graph in (False, True):
        _, zeros = grad(x * 2, [x, other], materialize_grads=True, create_graph=create_graph)
        assert zeros.requires_grad is create_graph


def test_inputs_that_are_results_retain_their_gradients_from_then_on():
    x = leaf(1.0)
    y = x * 2
    backward(y * 3, inputs=[y, y], retain_graph=True)
    assert (y.grad.array.tolist(), y.retains_grad, x.grad) == ([3.0], True, None)
    backward(y * 3)
    assert (y.grad.array.tolist(), x.grad.array.tolist()) == ([6.0], [6.0])


def test_an_input_that_is_given_twice_is_one():
    x = leaf(1.0)
    backward(x * 3, inputs=[x, x])
    assert x.grad.array.tolist() == [3.0]


def test_a_gradient_that_is_added_to_stays_the_tensor_that_it_is():
    x = leaf(1.0)
    (x * x).backward(create_graph=True)
    first = x.grad
    (x * 3).backward()
    assert x.grad is first
    assert first.requires_grad
    assert first.array.tolist() == [5.0]
    (x * 3).backward(create_graph=True)  # what was read of it before stays as it was
    assert x.grad is not first
    assert first.array.tolist() == [5.0]


def test_no_gradient_arrives_in_a_view_that_was_made_under_no_grad():
    with no_grad():
        view = leaf(1.0, 2.0)[1:]
    assert grad(view * 2, view, allow_unused=True) == (None,)
    with pytest.raises(AutogradError, match="was not used"):
        grad(view * 2, view)
    seen = []
    view.register_post_accumulate_grad_hook(seen.append)
    (view * 2).backward()
    assert seen == []


def test_value_needed_only_by_a_no_grad_view_may_be_overwritten():
    """As in PyTorch, where it is not saved: no gradient goes to the view."""
    one, factor = leaf(1.0, 1.0), Tensor(np.array([2.0, 3.0]))
    with no_grad():
        view = one[:]
    product = view * factor + one
    factor += 1.0
    backward(product, xp.ones(2))
    assert view.grad is None
    np.testing.assert_array_equal(one.grad, [1, 1])
