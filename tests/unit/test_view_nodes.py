"""Writes of Python's arithmetic, and views of what requires no gradient when they are made."""

import gc
import sys
import weakref

import numpy as np
import pytest

from opdispatch import AutogradError, Library, Tensor, enable_grad, func, no_grad, ops, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import backward, grad
from tests.unit.leaf_tensors import leaf


def plain(*numbers):
    return Tensor(np.array(numbers, dtype=float))


# -- arithmetic in place ---------------------------------------------------------------------------


def multiply(x, y):
    x *= y
    return x


def divide(x, y):
    x /= y
    return x


def power(x, y):
    x **= y
    return x


def remainder(x, y):
    x %= y
    return x


@pytest.mark.parametrize("write", [multiply, divide, power, remainder])
@pytest.mark.parametrize("of", [leaf, plain])
def test_backward_pass_uses_the_values_from_before_a_write(write, of):
    x, y = of(5.0, 7.0), leaf(2.0, 3.0)
    wanted = [each for each in (x, y) if each.requires_grad]
    written = grad(xp.sum(write(x * 1, y)), wanted)
    operator = {multiply: xp.multiply, divide: xp.divide, power: xp.pow, remainder: xp.remainder}
    for one, other in zip(written, grad(xp.sum(operator[write](x, y)), wanted), strict=True):
        assert np.array_equal(one.array, other.array)


def test_of_a_power_also_with_a_number():
    x = leaf(1.0, 2.0)
    xp.sum(power(x * 1, 3)).backward()
    assert x.grad.array.tolist() == [3.0, 12.0]


def test_writes_keep_gradients_in_transformed_functions():
    x, y = plain(1.0, 2.0), plain(3.0, 4.0)

    def total(x, y):
        return xp.sum(multiply(x * 1, y))

    assert func.grad(total, argnums=1)(x, y).array.tolist() == [1.0, 2.0]
    assert vmap(func.grad(total, argnums=1))(x, y).array.tolist() == [1.0, 2.0]
    batched = func.grad(lambda x, y: xp.sum(vmap(total)(x, y)), argnums=1)
    assert batched(x, y).array.tolist() == [1.0, 2.0]


def test_a_tensor_that_is_multiplied_with_itself_in_place_is_refused():
    x = leaf(1.0) * 1
    x *= x
    with pytest.raises(AutogradError, match="modified by an in-place operation"):
        x.backward()


# -- views of what requires no gradient yet --------------------------------------------------------


def test_views_learn_that_their_base_requires_gradients():
    base, w = plain(1.0, 2.0), leaf(3.0)
    part = base[1:]
    inner = part[:]
    base[...] = w * 2
    assert (part.requires_grad, inner.requires_grad, part.is_leaf) == (True, True, False)
    xp.sum(part * inner).backward()
    assert w.grad.array.tolist() == [24.0]


def test_view_gets_the_history_of_a_write_through_another_view():
    base, w = plain(1.0, 2.0), leaf(3.0)
    sister, part = base[1:], base[1:]
    part[...] = w * 2
    xp.sum(sister * 3).backward()
    assert w.grad.array.tolist() == [6.0]


def test_a_view_requires_gradients_as_its_base_also_after_requires_grad_was_unset():
    base = plain(1.0, 2.0)
    part, other = base[1:], base[:1]
    part.requires_grad = True
    part.requires_grad = False
    other.requires_grad = False
    assert (part.requires_grad, other.requires_grad) == (False, False)
    base.requires_grad = True
    later = base[1:]
    assert [part.requires_grad, other.requires_grad, later.requires_grad] == [True] * 3
    xp.sum(later * 3).backward()
    assert base.grad.array.tolist() == [0.0, 3.0]
    base.requires_grad = False
    assert base[1:].requires_grad is False


def test_several_views_made_under_no_grad_are_like_one():
    base, w = plain(1.0, 2.0), leaf(3.0, 4.0)
    with no_grad():
        part, of_leaf = xp.unstack(base)[0], xp.unstack(w)[1]
    assert (part.requires_grad, of_leaf.requires_grad) == (False, True)
    with pytest.raises(AutogradError, match="made under no_grad cannot be written to"):
        part[...] = w[0]
    assert xp.unstack(base[1:])[0]._base is base


def test_several_views_learn_that_their_base_requires_gradients():
    base, w = plain(1.0, 2.0), leaf(3.0)
    parts = xp.unstack(xp.expand_dims(base, axis=1), axis=1)[0]
    base[...] = w * 2
    assert parts.requires_grad
    xp.sum(parts).backward()
    assert w.grad.array.tolist() == [4.0]


def test_a_base_does_not_keep_its_views():
    base = plain(*range(100))
    gc.disable()  # references alone keep them
    try:
        known = [weakref.ref(base[1:]) for _ in range(100)]
        before = sys.getallocatedblocks()
        for _ in range(1000):
            base[1:]
        assert sys.getallocatedblocks() - before <= 16
    finally:
        gc.enable()
    assert {each() for each in known} == {None}


def test_a_view_that_was_made_under_no_grad_is_refused_then():
    base = plain(1.0, 2.0)
    with no_grad():
        part, other = base[1:], base[1:]
    with pytest.raises(AutogradError, match="made under no_grad cannot be written to"):
        part[...] = leaf(1.0)
    base[...] = leaf(1.0)
    with pytest.raises(AutogradError, match="made under no_grad cannot be used"):
        other * 2


# -- operators of one's own ------------------------------------------------------------------------


@pytest.fixture
def clear():
    """An operator that writes by itself, and has no derivative."""

    def kernel(x):
        x.array[...] = 0

    with Library("autograd_writes", "DEF") as library:
        library.define("clear_(Tensor(a!) x) -> ()")
        library.impl("clear_", kernel, "CPU")
        yield ops.autograd_writes.clear_


def test_arithmetic_in_place_bumps_version(clear):
    x = plain(1.0, 2.0)
    clear(x[1:])
    assert (x._version, x.array.tolist()) == (1, [1.0, 0.0])


def test_saved_tensor_cleared_in_place_fails_the_backward_pass(clear):
    y = leaf(1.0, 2.0) * 1
    z = xp.sum(y * y)
    clear(y.detach())
    with pytest.raises(AutogradError, match="modified by an in-place operation"):
        z.backward()


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]])
def test_in_place_operator_without_a_derivative_fails_the_backward_pass(clear, part):
    y = leaf(1.0, 2.0) * 1
    clear(part(y))
    with pytest.raises(AutogradError, match="autograd_writes::clear_ has no derivative"):
        xp.sum(y).backward()


# -- arithmetic in place is one step ---------------------------------------------------------------


def test_arithmetic_in_place_is_one_step_of_the_graph():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    z = x * 1
    before = z.grad_fn
    z *= y
    assert (repr(z.grad_fn), z._version) == ("<MultiplyBackward>", 1)
    assert [edge[0] for edge in z.grad_fn.next_functions] == [before, y.grad_fn or _edge(y)]
    [of_x, of_y] = grad(xp.sum(z), [x, y], create_graph=True)
    assert (of_x.array.tolist(), of_y.array.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    assert grad(xp.sum(of_y), x)[0].array.tolist() == [1.0, 1.0]


def _edge(tensor):
    from opdispatch.autograd.graph import get_gradient_edge

    return get_gradient_edge(tensor).node


def test_hooks_of_a_view_as_it_was_do_not_see_what_is_written_to_it():
    seen, x = [], leaf(1.0, 2.0, 3.0)
    y = x * 1
    view = y[1:]
    view.register_hook(lambda grad: seen.append(grad.array.tolist()))
    view *= leaf(5.0, 6.0)
    assert [repr(each.grad_fn) for each in (y, view)] == ["<CopySlices>", "<ReplayedView>"]
    xp.sum(y).backward()
    assert (seen, x.grad.array.tolist()) == ([], [1.0, 5.0, 6.0])


def test_a_refused_write_leaves_elements_and_versions():
    x = leaf(1.0, 2.0)
    with pytest.raises(AutogradError, match="a leaf"):
        x *= 2.0
    view = x[1:]
    with pytest.raises(AutogradError, match="a view of a leaf"):
        view += 1.0
    assert (x.array.tolist(), x._version) == ([1.0, 2.0], 0)


# -- views of what requires gradients --------------------------------------------------------------


def test_views_under_no_grad_require_what_their_base_does_and_no_gradient_arrives_there():
    x = leaf(1.0, 2.0)
    with no_grad():
        view, of_step = x[1:], (x * 1)[1:]
    assert (view.requires_grad, view.is_leaf, of_step.requires_grad) == (True, True, False)
    seen = []
    view.register_hook(lambda grad: seen.append(grad.array.tolist()))
    y = view * 3.0
    y.backward()
    assert (y.requires_grad, y.grad_fn.edges[0], view.grad, x.grad) == (True, None, None, None)
    with pytest.raises(AutogradError, match="does not require a gradient"):
        view.backward()
    assert seen == []
    view.requires_grad_()
    (view * 3.0).backward()
    assert (seen, view.grad.array.tolist(), x.grad) == ([[3.0]], [3.0], None)


def test_views_of_a_leaf_that_comes_to_require_gradients():
    base = plain(1.0, 2.0)
    view = base[1:]
    base.requires_grad_()
    assert (view.requires_grad, view.is_leaf) == (True, True)
    (view * base[1:]).backward()
    assert (view.grad, base.grad.array.tolist()) == (None, [0.0, 2.0])


def test_accumulated_gradient_has_history_only_with_create_graph():
    given = leaf(1.0, 2.0)
    x = leaf(1.0, 2.0)
    x.backward(given)
    assert not x.grad.requires_grad
    x.grad = None
    y = xp.reshape(x, (2, 1))
    y.retain_grad()
    y.backward(xp.reshape(given, (2, 1)))
    given.array[0] = 9.0
    assert (x.grad.requires_grad, x.grad.array.tolist()) == (False, [1.0, 2.0])
    assert (y.grad.requires_grad, y.grad.array.tolist()) == (False, [[1.0], [2.0]])
    x.grad = None
    (x * 1).backward(given, create_graph=True)
    assert x.grad.requires_grad


def test_a_view_that_was_made_a_leaf_is_the_base_of_its_views():
    base = plain(1.0, 2.0, 3.0)
    view = base[1:].requires_grad_()
    part = view[1:]
    with pytest.raises(AutogradError, match="a view of a leaf"):
        part[...] = 0.5
    xp.sum(part * 2.0).backward()
    assert (view.grad.array.tolist(), base.requires_grad) == ([0.0, 2.0], False)


def test_a_view_without_elements_is_a_view():
    x = leaf(1.0, 2.0)
    for part in (x[2:], x[1:][1:]):
        with pytest.raises(AutogradError, match="a view of a leaf"):
            part *= 2.0
    y = x * 1
    part = y[2:]
    part *= 5.0
    assert (repr(y.grad_fn), y._version) == ("<CopySlices>", 1)
    assert grad(xp.sum(y), x)[0].array.tolist() == [1.0, 1.0]


def test_a_view_under_no_grad_requires_gradients_as_the_first_of_its_bases_does():
    x = Tensor(np.ones((3, 3)))
    turned = xp.matrix_transpose(x).requires_grad_()
    with no_grad():
        view = turned[0][1:]
    part = turned[0]
    with no_grad():
        assert not part[1:].requires_grad
    assert not view.requires_grad
    assert part[1:].requires_grad


def test_a_view_of_a_view_that_requires_gradients_gets_the_history_of_the_first_base():
    base = plain(1, 2, 3)
    part = base[1:].requires_grad_()
    view = part[::1]
    assert view._base is base
    base[1:] = 5.0
    assert (repr(view.grad_fn), base.requires_grad) == ("<ReplayedView>", False)
    backward([part, view], [xp.ones(2), xp.ones(2)])
    assert part.grad.array.tolist() == [1.0, 1.0]
    with pytest.raises(AutogradError, match="a view of a leaf that requires gradients"):
        view[0] = 2.0


@pytest.mark.parametrize("is_under_no_grad", [True, False])
def test_a_gradient_for_a_leaf_view_is_refused_once_its_base_has_another_history(is_under_no_grad):
    base = plain(1, 2, 3)
    with no_grad() if is_under_no_grad else enable_grad():
        view = base[1:]
    result = xp.sum(view.requires_grad_() * 3)
    base[:1] = leaf(5)
    message = "made under no_grad" if is_under_no_grad else "was a leaf, and is made by <ReplayedV"
    with pytest.raises(AutogradError, match=message):
        result.backward()
    assert view.grad is None
