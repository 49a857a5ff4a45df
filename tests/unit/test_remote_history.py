"""Tensors whose history another process has: what would be incomplete is an error."""

from __future__ import annotations

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, no_grad
from opdispatch import array_api as xp
from opdispatch.autograd import grad
from opdispatch.autograd.node import Origin
from opdispatch.autograd.remote_history import arrive, has_history, name_leaf, note_call


def leaf(*numbers: float) -> Tensor:
    return Tensor(np.array(numbers), requires_grad=True)


def arrived(name: str, *numbers: float, has_history: bool = False) -> Tensor:
    tensor = leaf(*numbers)
    arrive(tensor, Origin(name.encode(), "interpreter b"), has_history=has_history)
    return tensor


def test_only_what_was_calculated_has_a_history():
    x = leaf(1.0)
    assert has_history(x * 2)
    assert not has_history(x)
    assert not has_history((x * 2).detach())
    assert not has_history(np.ones(1))


def test_leaves_that_came_are_leaves():
    x, y = arrived("x", 2.0), arrived("y", 3.0)
    assert x.is_leaf
    of_x, of_y = grad(xp.sum(x * x * y), [x, y])
    assert (float(of_x), float(of_y)) == (12.0, 4.0)
    xp.sum(x * y).backward()
    assert float(x.grad) == 3.0


def test_backward_pass_raises_where_a_history_was_left():
    value, here = arrived("value", 2.0, has_history=True), leaf(3.0)
    assert not value.is_leaf
    y = xp.sum(value * here)
    with pytest.raises(AutogradError, match=r"came from interpreter b, and has left its history"):
        y.backward()


def test_gradients_of_what_never_left_are_complete():
    value, here = arrived("value", 2.0, has_history=True), leaf(3.0)
    assert float(grad(xp.sum(value * here), here)[0]) == 2.0
    # Of the value itself nothing is missing, either.
    assert float(grad(xp.sum(value * here), value)[0]) == 3.0


def test_gradient_through_a_moved_value_raises_autograd_error():
    value, x = arrived("value", 2.0, has_history=True), arrived("x", 3.0)
    y = xp.sum(value * x)
    for wanted in (x, [x, value], [value, x]):
        with pytest.raises(AutogradError, match="came from interpreter b"):
            grad(y, wanted, allow_unused=True, retain_graph=True)
    assert float(grad(xp.sum(x * 2), x)[0]) == 2.0


def test_a_leaf_that_comes_back_is_not_the_one_that_left():
    before = leaf(2.0)
    name_leaf(before, b"x")
    y = before * before
    after = arrived("x", 2.0)
    with pytest.raises(AutogradError, match="has been in interpreter b since it was used here"):
        grad(xp.sum(y + after), after)
    assert float(grad(xp.sum(after * 3), after)[0]) == 3.0


def test_call_made_in_another_process_ends_the_backward_pass():
    x, plain = leaf(1.0, 2.0), np.ones(2)
    made = [leaf(2.0, 4.0), leaf(3.0, 6.0), Tensor(np.ones(2)), 5]
    note_call("interpreter b", [[x], plain], made)
    assert repr(made[0].grad_fn) == "<CallElsewhere>"
    assert made[1].grad_fn is made[0].grad_fn
    assert not made[2].requires_grad
    y = xp.sum(made[1] * x)
    with pytest.raises(AutogradError, match="a call that was made in interpreter b, from"):
        y.backward(retain_graph=True)
    with pytest.raises(AutogradError, match="a call that was made in interpreter b, from"):
        grad(y, x, retain_graph=True)
    assert float(xp.sum(grad(y, made[1])[0])) == 3.0


def test_results_that_are_arguments_or_depend_on_none_stay_what_they_are():
    x, own = leaf(1.0), leaf(2.0)
    note_call("interpreter b", [x], [x])
    note_call("interpreter b", [np.ones(1)], [own])
    with no_grad():
        note_call("interpreter b", [x], [own])
    assert x.is_leaf
    assert own.is_leaf
