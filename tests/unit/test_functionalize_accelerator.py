"""A backend that has neither views nor writes runs programs with both, functionalized.

The simulated accelerator is given kernels for operators that make new arrays; those for views and
for writes refuse.
"""

import numpy as np
import pytest

from opdispatch import Tensor, functionalize, register_backend
from opdispatch import array_api as xp
from tests.simulated_accelerator import Accelerator, AcceleratorArray
from tests.writeless_accelerator import HERE, RefusedError, implement_operators


@pytest.fixture(scope="module", autouse=True)
def accelerator():
    backend = Accelerator()
    registration = register_backend(backend)
    library = implement_operators()
    yield backend
    library.close()
    registration.close()


def views_and_writes(x):
    rows = xp.unstack(x, axis=0)
    rows[1][...] = rows[0] * 10
    turned = xp.permute_dims(x, (1, 0))
    turned[1:, 0] = 7
    flat = xp.reshape(x, (-1,))
    flat[np.array([0, 2])] = flat[1:3]
    x[0] += 1
    xp.flip(xp.expand_dims(x, axis=0))[0, :, 0] = xp.squeeze(
        xp.expand_dims(x[:, 2], axis=0), axis=0
    )
    return flat, xp.moveaxis(turned, 0, 1), xp.sum(rows[0]), xp.matrix_transpose(x)


def parts(x):
    xp.real(x)[0] = 5
    xp.imag(x)[...] = xp.real(x)
    square = xp.reshape(x, (2, 2))
    xp.linalg.diagonal(square)[...] = square[0] * 2
    return x * 1


def test_programs_with_views_and_writes_run_there():
    expected = Tensor(np.arange(6.0).reshape(2, 3))
    x = expected.to(HERE)
    results = views_and_writes(expected)
    made = functionalize(views_and_writes, remove="mutations_and_views")(x)
    for one, other in zip((*made, x), (*results, expected), strict=True):
        assert one.device == HERE
        np.testing.assert_array_equal(one.to("cpu").array, other.array)


def test_plain_arrays_of_the_accelerator_are_inputs(accelerator):
    def program(x):  # calls operators of it, since Python's arithmetic with it would call none
        rows = xp.unstack(x)
        rows[1][...] = rows[0] * 10
        turned = xp.permute_dims(x, (1, 0))
        turned[1:, 0] = 7
        return turned, xp.reshape(x, (-1,))

    expected = Tensor(np.arange(6.0).reshape(2, 3))
    x = AcceleratorArray(np.arange(6.0).reshape(2, 3))
    results = program(expected)
    made = functionalize(program, remove="mutations_and_views")(x)
    for one, other in zip((*made, x), (*results, expected), strict=True):
        array = one.array if isinstance(one, Tensor) else one
        np.testing.assert_array_equal(accelerator.to_host(array), other.array)


def test_parts_and_diagonals_are_written_to_there():
    x = Tensor(np.arange(4) * (1 + 2j)).to(HERE)
    result = functionalize(parts, remove="mutations_and_views")(x)
    expected = np.array([10 + 10j, 1 + 1j, 2 + 2j, 2 + 2j])
    np.testing.assert_array_equal(result.to("cpu").array, expected)
    np.testing.assert_array_equal(x.to("cpu").array, expected)


def test_they_do_not_run_there_as_they_are():
    x = Tensor(np.arange(6.0).reshape(2, 3)).to(HERE)
    for function in (views_and_writes, functionalize(views_and_writes)):
        with pytest.raises(RefusedError, match="unstack"):
            function(x)
    with pytest.raises(RefusedError, match="setitem_"):
        x[0] = 1
    functionalize(lambda y: y.__setitem__(0, 1))(x)
    assert (x.to("cpu").array[0] == 1).all()
