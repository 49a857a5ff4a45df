"""Functions that see gradients in the backward pass, and tensors that keep theirs."""

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, no_grad
from opdispatch import array_api as xp
from opdispatch.autograd import backward, grad
from tests.unit.leaf_tensors import leaf

# -- of tensors ------------------------------------------------------------------------------------


def test_a_hook_that_is_registered_twice_is_removed_once():
    x, seen = leaf(1.0), []
    first = x.register_hook(seen.append)
    x.register_hook(seen.append)
    first.remove()
    first.remove()
    (x * 2).backward()
    assert len(seen) == 1


def test_a_handle_is_a_block():
    x = leaf(1.0)
    y = x * 2
    with y.register_hook(lambda gradient: gradient * 10):
        y.backward(retain_graph=True)
    y.backward()
    assert x.grad.array.tolist() == [22.0]


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ("text", "returned str; expected a Tensor"),
        (Tensor(np.ones(3)), "shape [3]"),
        (Tensor(np.ones(1, np.float32)), "float32"),
    ],
)
def test_hook_result_must_match_the_gradient(returned, text):
    y = leaf(1.0) * 2
    y.register_hook(lambda gradient: returned)
    with pytest.raises(AutogradError) as caught:
        y.backward()
    assert text in str(caught.value)
    assert "lambda" in str(caught.value)


def test_a_gradient_that_is_asked_for_on_the_way_is_that_before_hooks():
    x = leaf(1.0)
    y = x * 2
    y.register_hook(lambda gradient: gradient * 10)
    of_y, of_x = grad(y * 3, [y, x])
    assert (of_y.array.tolist(), of_x.array.tolist()) == ([3.0], [60.0])


# -- retain_grad -----------------------------------------------------------------------------------


def test_retained_gradient_follows_hooks_and_accumulates():
    y = leaf(2.0) * 2
    y.retain_grad()
    assert y.retains_grad
    y.register_hook(lambda gradient: gradient * 5)
    (y * 3).backward(retain_graph=True)
    assert y.grad.array.tolist() == [15.0]
    (y * 3).backward()
    assert y.grad.array.tolist() == [30.0]


def test_a_tensor_that_is_written_to_retains_its_new_gradient():
    y = leaf(2.0) * 2
    y.retain_grad()
    y *= 3
    xp.sum(y * y).backward()
    assert y.grad.array.tolist() == [24.0]


def test_written_view_and_its_base_retain_their_gradients():
    y = leaf(1.0, 2.0) * 1
    part = y[1:]
    y.retain_grad()
    part.retain_grad()
    part *= 2
    (xp.sum(y * y) + xp.sum(part)).backward()
    assert y.grad.array.tolist() == [2.0, 9.0]
    assert part.grad.array.tolist() == [1.0]


def test_view_written_under_no_grad_retains_its_gradient():
    x = leaf(1.0, 2.0)
    part = x[1:]
    part.retain_grad()
    with no_grad():
        part[...] = 5.0
    xp.sum(part * part).backward()
    assert part.grad.array.tolist() == [10.0]


# -- of leaves and nodes ---------------------------------------------------------------------------


def test_a_leaf_says_when_its_gradient_was_added_up():
    x, seen = leaf(1.0), []
    handle = x.register_post_accumulate_grad_hook(lambda each: seen.append(each.grad.array.item()))
    (x * 2).backward()
    backward(x * 3, inputs=x)
    grad(x * 4, x)
    handle.remove()
    (x * 5).backward()
    assert seen == [2.0, 5.0]


def test_only_leaves_that_require_gradients_do():
    with pytest.raises(AutogradError, match="is not a leaf"):
        (leaf(1.0) * 2).register_post_accumulate_grad_hook(print)
    with pytest.raises(AutogradError, match="requires no gradient"):
        Tensor(np.ones(1)).register_post_accumulate_grad_hook(print)


def test_a_leaf_that_requires_no_gradient_any_more_gets_none():
    x = leaf(1.0)
    y = x * 2
    x.requires_grad_(False)
    y.backward()
    assert x.grad is None


def test_a_node_has_hooks_before_and_after():
    x, w = leaf(2.0), Tensor(np.array([3.0]))
    y = x * w
    seen = []
    before = y.grad_fn.register_prehook(
        lambda outputs: (seen.append("before"), (outputs[0] * 2,))[1]
    )
    y.grad_fn.register_hook(
        lambda inputs, outputs: seen.append((len(inputs), inputs[1], outputs[0].array.item()))
    )
    y.register_hook(lambda gradient: seen.append("tensor"))
    y.backward(retain_graph=True)
    assert seen == ["tensor", "before", (2, None, 2.0)]
    assert x.grad.array.tolist() == [6.0]
    before.remove()
    y.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 100, None))
    y.backward()
    assert x.grad.array.tolist() == [306.0]


def test_a_hook_of_a_node_returns_as_many_gradients_as_it_is_given():
    y = leaf(1.0) * 2
    y.grad_fn.register_hook(lambda inputs, outputs: ())
    with pytest.raises(AutogradError, match="returned 0 gradients; expected 1"):
        y.backward()
