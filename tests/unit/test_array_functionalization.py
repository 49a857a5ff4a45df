"""Operators of one's own in functionalized functions: what is called in their place."""

import itertools

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Library,
    NoKernelError,
    Tensor,
    functionalize,
    ops,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad
from opdispatch.functionalities.functionalize_fallback import make_view_kernel
from tests.unit.functionalized import called_in, tensor

NAMES = (f"functional{number}" for number in itertools.count())


@pytest.fixture
def lib():
    library = Library(next(NAMES), "DEF")
    yield library
    library.close()


def define(lib, schema, kernel, key="CPU"):
    lib.impl(lib.define(schema), kernel, key)
    return getattr(ops, lib.ns)


def scale_(x, by):
    x.array[...] *= by
    return x


def test_an_operator_that_writes_is_replaced_by_the_one_that_returns(lib):
    define(lib, "scale_(Tensor(a!) x, float by) -> Tensor(a!)", scale_)
    mine = define(lib, "scale(Tensor x, float by) -> Tensor", lambda x, by: Tensor(x.array * by))
    x = tensor(2, 3)
    called, result = called_in(lambda y: mine.scale_(y[0], 3), x)
    assert called == ["getitem", "scale", "setitem", "getitem", "copy_"]
    assert (result.array == [3, 6, 9]).all()
    assert (x.array[0] == [3, 6, 9]).all()


def test_functional_variant_result_keeps_dtype_and_must_match_shape(lib):
    define(lib, "f_(Tensor(a!) x, Tensor y) -> Tensor(a!)", lambda x, y: x)
    mine = define(lib, "f(Tensor x, Tensor y) -> Tensor", lambda x, y: Tensor(x.array + y.array))
    x = tensor(2, dtype=np.float32)
    functionalize(mine.f_)(x, tensor(2))
    assert x.dtype == np.float32
    assert (x.array == [2, 4]).all()
    with pytest.raises(ArgumentError, match=r"of shape \[2\], and .* returned one of shape \[3, 2"):
        functionalize(mine.f_)(x, tensor(3, 2))


def test_an_out_argument_is_replaced_by_what_another_overload_returns(lib):
    def divmod_out(x, y, *, quotient, rest):
        raise AssertionError("it writes")

    define(
        lib,
        "parts.out(Tensor x, Tensor y, *, Tensor(a!) quotient, Tensor(b!) rest) "
        "-> (Tensor(a!), Tensor(b!))",
        divmod_out,
    )
    define(lib, "parts.other(Tensor x) -> (Tensor, Tensor)", lambda x: (x, x))
    mine = define(
        lib,
        "parts.Tensor(Tensor x, Tensor y) -> (Tensor, Tensor)",
        lambda x, y: tuple(map(Tensor, np.divmod(x.array, y.array))),
    )
    quotient, rest = tensor(2), tensor(2)

    def function(x, y, first, second):
        made = mine.parts.out(x, y, quotient=first, rest=second)
        assert made[0] is first
        assert made[1] is second
        return made[0] + made[1]

    result = functionalize(function)(tensor(2), Tensor(np.array([2.0, 2.0])), quotient, rest)
    assert (quotient.array == [0, 1]).all()
    assert (rest.array == [1, 0]).all()
    assert (result.array == [1, 1]).all()


def test_an_operator_may_have_a_counterpart_that_returns_both(lib):
    define(lib, "step(Tensor(a!) state, Tensor x) -> Tensor", lambda state, x: 1 / 0)
    mine = define(
        lib,
        "step_functional(Tensor state, Tensor x) -> (Tensor, Tensor)",
        lambda state, x: (Tensor(state.array * x.array), Tensor(state.array + x.array)),
    )
    state = tensor(2)
    called, result = called_in(mine.step, state, tensor(2))
    assert called == ["step_functional", "copy_"]
    assert (result.array == [1, 4]).all()
    assert (state.array == [2, 4]).all()


def test_without_a_counterpart_it_is_called_with_copies(lib):
    def fill(first, others, last, x):
        for each in [first, *others, *([] if last is None else [last])]:
            each.array[...] = x.array
        return Tensor(x.array + 1)

    mine = define(
        lib, "fill(Tensor(a!) f, Tensor(b!)[] o, Tensor(c!)? l, Tensor x) -> Tensor", fill
    )
    x, y, z = tensor(2, 2), tensor(2), tensor(2)
    result = functionalize(lambda x, y, z: mine.fill(x[0], [y, x[1]], None, z * 5))(x, y, z)
    assert (x.array == [[5, 10], [5, 10]]).all()
    assert (y.array == [5, 10]).all()
    assert (result.array == [6, 11]).all()
    plain = np.zeros(2)
    functionalize(lambda z: mine.fill(Tensor(plain), [], None, z))(z)
    assert (plain == z.array).all()


def test_plain_arrays_are_written_to_at_the_end(lib):
    def fill(x, value):
        x[...] = value

    mine = define(lib, "fill(Tensor(a!) x, float value) -> ()", fill)
    array = np.zeros(2)

    def function():
        mine.fill(array, 3)
        assert (array == 0).all()
        return ops.array.add(array, array)

    assert (functionalize(function)().array == 6).all()
    assert (array == 3).all()


def test_gradients_go_through_copies(lib):
    define(lib, "double_(Tensor(a!) x) -> Tensor(a!)", lambda x: 1 / 0)
    lib.impl("double_", lambda x: x.__imul__(2), "AutogradCPU")
    mine = getattr(ops, lib.ns)

    def function(x):
        y = x * 1
        mine.double_(y[0])
        return xp.sum(y * y)

    x = Tensor(np.array([1.0, 2.0]), requires_grad=True)
    [found] = grad(functionalize(function)(x), x)
    assert (found.array == [8, 4]).all()


def test_a_view_needs_a_rule(lib):
    mine = define(lib, "rows(Tensor(a) x) -> Tensor(a)", lambda x: Tensor(x.array[0]))

    def function(x):
        row = mine.rows(x)
        x[0] = 5
        row[1] = 7
        return row * 1

    with pytest.raises(NoKernelError, match="make_view_kernel"):
        functionalize(function)(tensor(2, 3))

    def put_back(base, mutated, reapply_views):
        return xp.concat([xp.expand_dims(mutated, axis=0), base[1:]])

    lib.impl("rows", make_view_kernel(put_back), "Functionalize")
    x = tensor(2, 3)
    assert (functionalize(function)(x).array == [5, 7, 5]).all()
    assert (x.array[0] == [5, 7, 5]).all()
    called, _ = called_in(lambda x: mine.rows(x), tensor(2, 3))
    assert called == ["rows"]
    x = tensor(2, 3)  # without a rows_copy, what rows gives is copied
    result = functionalize(lambda y: mine.rows(y), remove="mutations_and_views")(x)
    assert not np.shares_memory(result.array, x.array)


def test_composite_kernels_are_functionalized_with_what_they_call(lib):
    def clear_first(x):
        y = x * 1
        y[0] = 0
        x[1] = 0
        return y

    mine = define(
        lib, "clear_first(Tensor(a!) x) -> Tensor", clear_first, "CompositeImplicitAutograd"
    )
    x = tensor(3)
    called, result = called_in(mine.clear_first, x)
    assert called == ["multiply", "setitem", "setitem", "copy_"]
    assert (result.array == [0, 2, 3]).all()
    assert (x.array == [1, 0, 3]).all()
