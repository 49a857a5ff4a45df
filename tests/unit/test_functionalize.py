"""Functionalized functions do what they do otherwise, without a write or a stale view below."""

from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import ArgumentError, Tensor, functionalize, local_dispatch_key_set
from opdispatch import array_api as xp
from opdispatch.functorch.functionalization import current_level
from tests.unit.functionalized import MODES, check, tensor

# -- programs --------------------------------------------------------------------------------------

VIEWS = {
    "getitem": lambda x: x[1:] if x.shape[0] > 1 else x[None],
    "steps": lambda x: x[::-2],
    "place": lambda x: x[0] if x.ndim > 1 else x[...],
    "matrix_transpose": lambda x: xp.matrix_transpose(x) if x.ndim > 1 else x[:, None],
    "permute_dims": lambda x: xp.permute_dims(x, tuple(range(x.ndim))[::-1]),
    "moveaxis": lambda x: xp.moveaxis(x, 0, -1),
    "expand_dims": lambda x: xp.expand_dims(x, axis=1),
    "squeeze": lambda x: xp.squeeze(xp.expand_dims(x, axis=0), axis=0),
    "flip": lambda x: xp.flip(x),
    "reshape": lambda x: xp.reshape(x, (-1,)),
    "reshape to a matrix": lambda x: xp.reshape(x, (x.shape[0], -1)),
    "unstack": lambda x: xp.unstack(x, axis=-1)[-1] if x.ndim > 1 else x,
    "astype": lambda x: xp.astype(x, x.dtype, copy=False),
    "real": lambda x: xp.real(x) if x.dtype.kind == "c" else x,
    "imag": lambda x: xp.imag(x) if x.dtype.kind == "c" else x,
}


def _write_all(x, y):
    x[...] = xp.sum(xp.abs(y)) + x


def _write_part(x, y):
    x[:1] = 2 * xp.sum(xp.abs(y))


def _write_places(x, y):
    x[np.array([0, 0])] = xp.abs(xp.sum(y))


def _add(x, y):
    x += 1


WRITES = {"all": _write_all, "part": _write_part, "places": _write_places, "add": _add}


@st.composite
def programs(draw):
    steps = []
    for place in range(1, draw(st.integers(2, 9))):
        names = (*VIEWS, *[f"= {name}" for name in WRITES], *("= all", "= part") * 2)
        name = draw(st.sampled_from(names))
        steps.append((name, draw(st.integers(0, place - 1)), draw(st.integers(0, place - 1))))
    return steps


@settings(max_examples=60, deadline=None)
@given(steps=programs(), dtype=st.sampled_from([np.float64, complex]))
def test_random_programs_do_what_they_do_otherwise(steps, dtype):
    def program(x):
        values, results = [x], []
        for name, one, other in steps:
            if name.startswith("= "):
                WRITES[name[2:]](values[one], values[other])
                values.append(values[one])
                results.append(xp.sum(xp.abs(values[other])))
            else:
                values.append(VIEWS[name](values[one]))
        return [*values, *results]

    check(program, (2, 3), dtype=dtype)


def test_a_stale_view_is_made_anew_when_it_is_read():
    def function(x):
        rows, columns = x[0], xp.matrix_transpose(x)
        rows[...] = 0
        seen = columns * 2
        columns[0] = 7
        return seen, rows, x * 1

    first, second = check(function, (2, 3))
    assert first.count("setitem") == 3  # the two, and the first one in its base
    assert "getitem_copy" in second
    assert "getitem" not in second


def test_unread_write_is_applied_when_the_function_returns():
    def function(x):
        x[0][...] = 0
        x[1][...] = 1
        return xp.asarray(3.0)

    check(function, (2, 3))


def test_a_reshape_is_a_view_where_it_is_one_otherwise():
    def function(x):
        turned = xp.matrix_transpose(x)
        copied, kept = xp.reshape(turned, (-1,)), xp.reshape(x, (-1,))
        copied[0] = 100
        kept[1] = 200
        xp.reshape(x, (6,), copy=True)[2] = 300
        return copied, kept, turned

    check(function, (2, 3))
    check(lambda x: function(xp.flip(xp.moveaxis(x, 0, 1))), (3, 2))


def test_copied_results_are_not_views():
    def function(x):
        y, z = xp.astype(x, xp.float32, copy=False), xp.astype(x, x.dtype)
        y[0], z[1] = 5, 6
        return y, z

    check(function, (3,))


def test_parts_of_complex_numbers_are_written_to_as_they_are():
    def function(x):
        xp.real(x)[0] = np.inf
        xp.imag(x)[1] = np.nan
        return +x

    check(function, (3,), dtype=complex)


def test_diagonals_are_written_to():
    def function(x):
        xp.linalg.diagonal(x)[...] = 0
        xp.linalg.diagonal(x, offset=1)[0] = 10
        xp.linalg.diagonal(x, offset=-1)[...] = xp.asarray([20.0, 30.0])
        return x * 1

    expected = np.array([[0.0, 10, 3], [20, 0, 6], [7, 30, 0]])
    for remove in MODES:
        x = tensor(3, 3)
        assert (functionalize(function, remove=remove)(x).array == expected).all()
        assert (x.array == expected).all()


def test_write_to_overlapping_elements_raises():
    def function(x):
        xp.broadcast_to(x, (4, 3))[0] = 1

    with pytest.raises(ArgumentError, match=r"more than one element .* single memory location"):
        functionalize(function)(tensor(3))
    check(lambda x: xp.broadcast_to(x, (4, 3)) * 2, (3,))


# -- what goes in and comes out ----------------------------------------------------------------

Pair = namedtuple("Pair", ["one", "other"])


def test_tensors_in_containers_are_found():
    def function(pair, *, options):
        pair.one[0] = 1
        options["x"][0][...] = pair.other
        return {"sum": (pair.one + 1, [pair.other]), "n": 3}

    x, y, z = tensor(2), tensor(2), tensor(2)
    result = functionalize(function)(Pair(x, y), options={"x": [z]})
    assert result["n"] == 3
    assert result["sum"][1][0] is y
    assert type(result["sum"][0]) is Tensor
    assert (x.array == [1, 2]).all()
    assert (z.array == y.array).all()


def test_one_tensor_given_twice_is_one():
    def function(x, y):
        x[0] = 9
        return y * 1

    x = tensor(2)
    assert (functionalize(function)(x, x).array == [9, 2]).all()


def test_functionalized_result_is_not_the_written_argument():
    x = tensor(2)

    def function(y):
        y[0] = 5
        return y

    result = functionalize(function)(x)
    assert not np.shares_memory(result.array, x.array)
    assert (result.array == x.array).all()
    assert functionalize(lambda y: y)(x) is x


def test_inputs_that_share_elements_are_not_written_to():
    x = tensor(2, 3)
    other = Tensor(x.array[0])

    def function(y, z):
        y[...] = 0
        return z * 1

    with pytest.raises(ArgumentError, match="shares elements with another input"):
        functionalize(function)(x, other)
    assert (x.array == tensor(2, 3).array).all()
    functionalize(function)(Tensor(x.array[1]), other)  # these do not
    assert (x.array[1] == 0).all()


def test_an_exception_leaves_the_inputs_as_they_are():
    def function(x):
        x[...] = 0
        raise KeyError("no")

    x, before = tensor(2), local_dispatch_key_set()
    with pytest.raises(KeyError):
        functionalize(function)(x)
    assert (x.array == [1, 2]).all()
    assert local_dispatch_key_set() == before
    assert current_level() is None


def test_tensors_from_elsewhere_are_written_to_at_the_end():
    buffer, seen = tensor(3), []

    def function(x):
        first = buffer[0]
        buffer[...] = buffer + x
        seen.append(buffer.array.copy())
        return first * 1, buffer * 1

    first, whole = functionalize(function)(tensor(3))
    assert (seen[0] == [1, 2, 3]).all()  # the tensor itself, before the end
    assert first.array == 2
    assert (whole.array == [2, 4, 6]).all()
    assert (buffer.array == [2, 4, 6]).all()


def test_a_copy_of_what_was_written_to_elsewhere_has_what_was_written():
    buffer = tensor(3)

    def function(x):
        buffer[...] = buffer + x
        return xp.asarray(buffer, copy=True)

    assert (functionalize(function)(tensor(3)).array == [2, 4, 6]).all()


def test_an_input_for_reading_only_is_not_written_to():
    x = tensor(2)
    x.array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        functionalize(lambda y: y.__setitem__(0, 1))(x)
    assert functionalize(lambda y: y[0] * 2)(x).array == 2


def test_elements_are_for_reading_only_in_the_function():
    def function(x):
        assert (x.shape, x.ndim, x.dtype, x.device) == ((2,), 1, np.float64, "cpu")
        assert str(x) == "FunctionalTensor(array([1., 2.]))"
        assert [float(each) for each in x] == [1, 2]
        assert np.sum(x) == 3
        x.array[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        functionalize(function)(tensor(2))


def test_a_functional_tensor_that_outlives_the_function_can_be_read():
    kept = []

    def function(x):
        kept.append(x[0])
        x[0] = 5

    functionalize(function)(tensor(2))
    assert (kept[0] + 1).array == 6
    assert functionalize(lambda y: y * kept[0])(tensor(1)).array == 5
    with pytest.raises(ArgumentError, match="has outlived the function"):
        kept[0][...] = 1


def test_only_what_can_be_removed_is():
    with pytest.raises(ArgumentError, match="expected 'mutations' or"):
        functionalize(print, remove="views")

    def steps():
        yield 1

    with pytest.raises(ArgumentError, match="generator function"):
        functionalize(steps)
