"""Writes to tensors of which a graph is recorded, and to views of them."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    Tensor,
    no_grad,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad
from tests.unit.leaf_tensors import leaf


@pytest.fixture
def x():
    return leaf(1.0, 2.0, 3.0)


# -- writing ---------------------------------------------------------------------------------------


def test_versions_are_counted_and_shared():
    x = Tensor(np.zeros((2, 3)))
    row, same = x[0], x.detach()
    assert x._version == 0
    row[1] = 1.0
    same[...] = 2.0
    assert x._version == row._version == same._version == 2
    assert x.array.tolist() == [[2, 2, 2], [2, 2, 2]]


def test_write_to_a_saved_tensor_fails_the_backward_pass(x):
    for make in (lambda y: y * y, xp.exp):
        y = x * 1
        z = make(y)
        (y if make is not xp.exp else z)[0] = 5.0
        with pytest.raises(AutogradError, match="is at version 1; expected version 0 instead"):
            xp.sum(z).backward()


def test_leaves_and_views_of_them_are_not_written_to(x):
    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        x[0] = 1.0
    with pytest.raises(AutogradError, match="a view of a leaf"):
        x[:2][0] = 1.0
    with no_grad():
        x[0] = 9.0
    assert x.array.tolist() == [9, 2, 3]


def test_writing_is_recorded(x):
    y = x * 1
    y[0] = x[2] * 10
    y[1] = 5.0
    assert y.array.tolist() == [30, 5, 3]
    xp.sum(y * y).backward()
    assert x.grad.array.tolist() == [0, 0, 2 * 30 * 10 + 2 * 3]


def test_second_derivatives_of_what_was_written_to(x):
    y = x * 1
    y[1:] = +y[1:] * x[0]
    [first] = grad(xp.sum(y), x, create_graph=True)
    assert first.array.tolist() == [1 + 2 + 3, 1, 1]
    [second] = grad(xp.sum(first * xp.asarray([1.0, 10.0, 100.0])), x)
    assert second.array.tolist() == [10 + 100, 1, 1]


def test_a_copy_is_recorded(x):
    assert grad(xp.sum(xp.asarray(x, copy=True) * 2), x)[0].array.tolist() == [2, 2, 2]


def test_writing_makes_a_tensor_part_of_the_graph(x):
    y = xp.zeros(3)
    y[1:] = x[:2]
    assert y.requires_grad
    xp.sum(y * xp.asarray([1.0, 2.0, 3.0])).backward()
    assert x.grad.array.tolist() == [2, 3, 0]


def test_a_write_through_a_view_is_one_of_its_base(x):
    y = x * 1
    view = y[1:]
    other = y[:2]
    view[...] = view * 3
    assert y.grad_fn.name == "CopySlices"
    assert other.array.tolist() == [1, 6]
    [of_y] = grad(xp.sum(y), x, retain_graph=True)
    [of_view] = grad(xp.sum(view), x, retain_graph=True)
    [of_other] = grad(xp.sum(other), x)
    assert [of_y.array.tolist(), of_view.array.tolist(), of_other.array.tolist()] == [
        *([1, 3, 3], [0, 3, 3], [1, 3, 0]),
    ]


def test_views_of_views_are_views_of_the_base(x):
    y = xp.reshape(x * 1, (3, 1))
    y[1:][0][...] = x[0] * 4
    [of_y] = grad(xp.sum(y), x)
    assert of_y.array.tolist() == [5, 0, 1]


def test_a_view_that_was_made_without_gradients_is_not_written_to_with_them(x):
    y = x * 1
    with no_grad():
        view = y[0]
    with pytest.raises(AutogradError, match="was made under no_grad"):
        view[...] = 1.0


def test_results_of_operators_without_derivatives_that_write_are_recorded(define):
    fill = define("m::fill_(Tensor(a!) x) -> Tensor(a!)", CPU=lambda x: (x.array.fill(1.0), x)[1])
    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        fill(leaf(2.0))
    y = leaf(2.0) * 1
    assert fill(y) is y
    with pytest.raises(AutogradError, match="m::fill_ has no derivative"):
        xp.sum(y).backward()


# -- views -----------------------------------------------------------------------------------------

VIEWS = {
    "expand_dims": lambda x: xp.expand_dims(x, axis=0),
    "flip": xp.flip,
    "getitem": lambda x: x[1:, 0],
    "matrix_transpose": xp.matrix_transpose,
    "moveaxis": lambda x: xp.moveaxis(x, 0, 1),
    "permute_dims": lambda x: xp.permute_dims(x, (1, 0)),
    "reshape": lambda x: xp.reshape(x, (-1,)),
    "reshape of a view": lambda x: xp.reshape(x[:1], (3, 1)),
    "squeeze": lambda x: xp.squeeze(x[:1], axis=0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_write_through_any_view_is_one_of_its_base(view, order):
    """Beside the same without views: by a mask."""
    x = leaf(*range(6))
    weights = leaf(*np.arange(1.0, 7.0).reshape(2, 3))
    weights.array = np.asarray(weights.array, order=order)
    y = xp.reshape(x, (2, 3)) * 1.0
    mask = Tensor(np.zeros((2, 3), bool))
    view(mask)[...] = True
    expected = xp.where(mask, (y + 0.0) * (y + 0.0), y + 0.0)
    other = view(y)
    before = +view(y)
    view(y)[...] = before * before
    assert y.array.tolist() == expected.array.tolist()
    for ours, theirs in ((y * weights, expected * weights), (other, view(expected))):
        [found] = grad(xp.sum(ours), x, create_graph=True)
        [wanted] = grad(xp.sum(theirs), x, create_graph=True)
        assert found.array.tolist() == wanted.array.tolist()


def test_parts_of_complex_tensors_are_views():
    z = leaf(1 + 2j, 3 - 1j, dtype=np.complex128) * 1.0
    base = z
    xp.real(z)[...] = 0.0
    xp.imag(z)[0] = 5.0
    assert z.array.tolist() == [5j, -1j]
    [of_z] = grad(z, base, xp.asarray([1 + 1j, 1 + 1j]))
    assert of_z.array.tolist() == [1 + 1j, 1 + 1j]


def test_views_that_are_read_only_have_a_history_of_their_base(x):
    y = xp.reshape(x, (3, 1)) * xp.ones(3)
    diagonal, spread = xp.linalg.diagonal(y), xp.broadcast_to(y, (2, 3, 3))
    y[0] = 2.0
    assert grad(xp.sum(diagonal), x, retain_graph=True)[0].array.tolist() == [0, 1, 1]
    assert grad(xp.sum(spread), x)[0].array.tolist() == [0, 6, 6]


def test_one_of_several_views_is_not_written_to_where_gradients_are_recorded(x):
    first, *_ = xp.unstack(xp.expand_dims(x, axis=0) * 1)
    with pytest.raises(AutogradError, match="a view that is one of several"):
        first[...] = 1.0
    first, *_ = xp.unstack(xp.ones((2, 2)))
    first[...] = 2.0
    assert first._version == 1


def test_write_to_a_broadcast_view_raises():
    for given in (xp.ones(3), leaf(1.0) * 1):
        with pytest.raises(ArgumentError, match="more than one element refers to a single memory"):
            xp.broadcast_to(given, (2, 3))[0] = 1.0
    single = xp.broadcast_to(xp.ones(3), (1, 3))
    assert single.shape == (1, 3)
