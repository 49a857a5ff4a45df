"""Writes of Python's arithmetic, and views of what requires no gradient when they are made."""

import gc

import numpy as np
import pytest

from opdispatch import AutogradError, Library, Tensor, func, no_grad, ops, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import grad


def leaf(*numbers):
    return Tensor(np.array(numbers, dtype=float), requires_grad=True)


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
def test_the_way_back_has_the_values_from_before_a_write(write, of):
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


def test_so_in_transformed_functions():
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


def test_and_so_do_views_of_what_was_written_to_through_another():
    base, w = plain(1.0, 2.0), leaf(3.0)
    sister, part = base[1:], base[1:]
    part[...] = w * 2
    xp.sum(sister * 3).backward()
    assert w.grad.array.tolist() == [6.0]


def test_a_base_does_not_keep_its_views():
    base = plain(*range(100))
    for _ in range(1000):
        base[1:]
    gc.collect()
    assert len(base.autograd_meta.views) <= 64


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


def test_what_they_write_to_has_another_version(clear):
    x = plain(1.0, 2.0)
    clear(x[1:])
    assert (x._version, x.array.tolist()) == (1, [1.0, 0.0])


def test_and_is_not_used_as_it_was(clear):
    y = leaf(1.0, 2.0) * 1
    z = xp.sum(y * y)
    clear(y.detach())
    with pytest.raises(AutogradError, match="modified by an in-place operation"):
        z.backward()


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]])
def test_and_has_no_derivative(clear, part):
    y = leaf(1.0, 2.0) * 1
    clear(part(y))
    with pytest.raises(AutogradError, match="autograd_writes::clear_ has no derivative"):
        xp.sum(y).backward()
