"""Values that a recorded call saves, and the state that its generated kernel relies on."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    DispatchKey,
    ExcludeDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    Tensor,
    local_dispatch_key_set,
    no_grad,
)
from opdispatch import array_api as xp
from opdispatch.array_api.operators import OPERATORS
from opdispatch.autograd import grad
from opdispatch.functionalities.derivative_kernel import make_derivative_kernel


def leaf(*values):
    return Tensor(np.array(values, np.float64), requires_grad=True)


@pytest.fixture
def x():
    return leaf(1.0, 2.0, 3.0)


@pytest.fixture
def record(define):
    """``record(schema, kernel, formulas)``: an operator whose derivative is made of formulas."""

    def record(schema, kernel, formulas):
        op = define(schema, CPU=kernel)
        autograd = make_derivative_kernel(op.schema, formulas)
        op.dispatcher.register_impl(op.name, DispatchKey.Autograd, autograd)
        return op

    return record


def doubled(x):
    return Tensor(x.array * 2)


# -- what is kept ----------------------------------------------------------------------------------


def test_a_formula_is_given_all_of_the_call_by_name(record):
    seen = {}

    def of_x(
        grad, grads, x_shape, y, y_shape, each, each_shape, some, number, sizes, pairs, result
    ):
        seen.update(locals())
        return grad * 2

    op = record(
        "m::f(Tensor x, Tensor? y, Tensor[] each, Tensor?[] some, *, int number, int[]? sizes, "
        "int[][] pairs) -> Tensor",
        lambda x, y, each, some, *, number, sizes, pairs: Tensor(x.array * 2),
        {"x": of_x},
    )
    x, y, array = leaf(1.0, 2.0), Tensor(np.ones((3, 1))), np.ones(5)
    result = op(x, y, [y, array], [None, y], number=3, sizes=[1, 2], pairs=[[1], [2]])
    assert grad(xp.sum(result), x)[0].array.tolist() == [2, 2]
    assert seen["grads"] == [seen["grad"]]
    assert (seen["x_shape"], seen["y_shape"]) == ((2,), (3, 1))
    assert seen["each_shape"] == [(3, 1), (5,)]
    assert seen["y"] is seen["each"][0] is seen["some"][1] is y
    assert seen["each"][1].array is array  # a tensor: what is done with it is dispatched
    assert seen["some"][0] is None
    assert (seen["number"], seen["sizes"], seen["pairs"]) == (3, [1, 2], [[1], [2]])
    assert seen["result"].grad_fn is result.grad_fn
    assert seen["result"].array is result.array


def test_lists_are_kept_as_they_were(record):
    op = record(
        "m::f(Tensor x, int[] sizes, int[][] pairs, Tensor[] each) -> Tensor",
        lambda x, sizes, pairs, each: doubled(x),
        {"x": lambda grad, sizes, pairs, each: grad * (sizes[0] + pairs[0][0] + len(each))},
    )
    x = leaf(1.0)
    sizes, pairs, each = [10], [[100]], [xp.ones(1)]
    keys = op.dispatch_keys([x, sizes, pairs, each])
    result = op.redispatch(keys, x, sizes, pairs, each)  # which copies nothing itself
    sizes[0], pairs[0][0] = 0, 0
    each.clear()
    assert grad(result, x)[0].array.tolist() == [111]


@pytest.mark.parametrize("returns", ["Tensor", "Tensor[]", "(Tensor, Tensor)"])
def test_an_argument_that_is_a_result_keeps_its_own_history(record, returns):
    results = {"Tensor": lambda xs: xs[0], "Tensor[]": list, "(Tensor, Tensor)": tuple}
    op = record(
        f"m::f(Tensor[] xs) -> {returns}",
        results[returns],
        {"xs": lambda grads, xs: [None if each is None else each * 3 for each in grads]},
    )
    x, y = leaf(1.0), leaf(1.0)
    result = op([x, y])
    assert x.is_leaf
    assert y.is_leaf
    one = result if returns == "Tensor" else result[0]
    assert one.grad_fn.num_results == (1 if returns == "Tensor" else 2)
    if returns != "Tensor":
        assert grad(one, x)[0].array.tolist() == [3]


def test_only_what_a_wanted_formula_needs_is_kept(x):
    y = xp.asarray(np.ones(3))
    other = weakref.ref(y)
    product = x * y
    assert product.grad_fn.kept[1] is None
    del y
    assert other() is not None
    total = x + xp.ones(3)
    assert total.grad_fn.kept == []
    del product
    assert other() is None


def test_gradients_of_some_of_a_list_and_of_what_comes_after_it(record):
    op = record(
        "m::f(Tensor[] each, Tensor x) -> Tensor",
        lambda each, x: Tensor(sum(one.array for one in each) * x.array),
        {
            "each": lambda grad, each, x: [grad * x for _ in each],
            "x": lambda grad, each: grad * sum(each, start=xp.zeros(1)),
        },
    )
    a, b, c = leaf(2.0), xp.asarray([3.0]), leaf(5.0)
    assert [g.array.tolist() for g in grad(op([a, b, c], c), [a, c])] == [[5], [15]]
    assert grad(op([a, b], b), a)[0].array.tolist() == [3]
    assert grad(op([b, b], c), c)[0].array.tolist() == [6]
    assert not op([b, b], b).requires_grad


# -- what was kept is checked ----------------------------------------------------------------------


def index_of(x):
    index = Tensor(np.array([0, 2]))
    return x[index], index


def factor_of(x):
    values = xp.linalg.qr(xp.reshape(x, (3, 1)))
    return values.R, values.Q


def repeated(x):
    y = x * 1
    return xp.exp(y) * y, y


@pytest.mark.parametrize("make", [index_of, factor_of, repeated])
def test_write_to_a_saved_value_fails_the_backward_pass(x, make):
    result, needed = make(x)
    with no_grad():
        needed[...] = 1
    with pytest.raises(AutogradError, match="is at version 1; expected version 0 instead"):
        xp.sum(result).backward()


def test_a_result_that_is_written_to_through_a_view_is_noticed(x):
    for write in (lambda y: y[1:], lambda y: y.detach(), lambda y: y):
        y = xp.exp(x)
        with no_grad():
            write(y)[...] = 0.0
        with pytest.raises(AutogradError, match=r"result 0 of ExpBackward, is at version 1"):
            xp.sum(y).backward()


def test_value_written_before_the_call_may_be_saved(x):
    y = x * 1
    y[0] = 3.0
    xp.sum(xp.exp(y) + y * y).backward()
    np.testing.assert_allclose(x.grad.array[1:], [np.exp(2) + 4, np.exp(3) + 6])


def test_tensors_have_versions_of_their_own():
    one, other = xp.zeros(2), xp.zeros(2)
    one[...] = 1.0
    one[...] = 2.0
    assert (one._version, other._version) == (2, 0)
    other[...] = 1.0
    assert (one._version, other._version) == (2, 1)


# -- nodes -----------------------------------------------------------------------------------------


def test_hooks_are_of_one_node(x):
    one, other = x * 2, x * 3
    seen = []
    one.register_hook(seen.append)
    xp.sum(other).backward()
    assert seen == []
    xp.sum(one).backward()
    assert len(seen) == 1


def test_a_node_comes_after_those_that_its_gradients_go_to(x):
    base = x * 1
    view = base[1:]
    base[...] = x * 2  # so that the view's history is made anew within the next call
    for node in (xp.exp(view).grad_fn, xp.concat([view, base]).grad_fn):
        assert all(node.number > of.number for of, _ in node.next_functions if of is not None)
    view[...] = x[:2]
    node = base.grad_fn
    assert node.name == "CopySlices"
    assert all(node.number > of.number for of, _ in node.next_functions if of is not None)


def test_a_result_that_is_an_argument_has_a_history_of_its_own(record):
    op = record("m::same(Tensor x) -> Tensor", lambda x: x, {"x": lambda grad: grad * 7})
    x = leaf(1.0)
    y = op(x)
    assert y is not x
    assert x.is_leaf
    assert grad(y, x)[0].array.tolist() == [7]


def test_a_result_without_derivatives_is_not_part_of_the_graph(record):
    op = record(
        "m::places(Tensor x) -> Tensor",
        lambda x: Tensor(x.array.astype(np.int64)),
        {"x": lambda grad, result: grad},
    )
    y = op(leaf(1.0))
    assert not y.requires_grad
    assert y.grad_fn is None


def test_an_array_that_a_kernel_returns_is_a_tensor_with_a_history(record):
    op = record(
        "m::f(Tensor x) -> Tensor",
        lambda x: x.array * 2,
        {"x": lambda grad, result: grad * result},
    )
    x = leaf(3.0)
    assert grad(op(x), x)[0].array.tolist() == [6]


def test_the_only_result_is_one_of_the_results(record):
    op = record(
        "m::f(Tensor x) -> Tensor",
        doubled,
        {"x": lambda grads, results: grads[0] * results[0]},
    )
    x = leaf(3.0)
    assert grad(op(x), x)[0].array.tolist() == [6]


def test_call_is_freed_with_its_results(x):
    index, y = Tensor(np.array([0, 1])), xp.ones(3)
    gc.disable()
    try:
        for make in (
            lambda: xp.exp(x),
            lambda: x * y,
            lambda: x[1:],
            lambda: x[index],
            lambda: xp.concat([x, y]),
            lambda: xp.unstack(x)[0],
            lambda: xp.linalg.qr(xp.reshape(x, (3, 1))).R,
        ):
            node = weakref.ref(make().grad_fn)
            assert node() is None
    finally:
        gc.enable()


# -- writing ---------------------------------------------------------------------------------------


def test_recorded_write_to_a_plain_array_raises(x):
    array = np.zeros(3)
    write = OPERATORS.setitem_.Tensor
    with pytest.raises(AutogradError, match=r"cannot be to a plain array.*make a Tensor of"):
        write(array, [None], [None], [1], [], x)
    assert array.tolist() == [0, 0, 0]
    with no_grad():
        write(array, [None], [None], [1], [], x)
    assert array.tolist() == [1, 2, 3]


# -- what is switched off within a recorded call ---------------------------------------------------


@pytest.fixture
def look(record):
    """An operator, and the local sets that its kernel has seen."""
    seen = []

    def kernel(x):
        seen.append(local_dispatch_key_set())
        return doubled(x)

    return record("m::look(Tensor x) -> Tensor", kernel, {"x": lambda grad: grad * 2}), seen


def test_a_recorded_call_switches_off_keys_for_its_kernel_alone(look):
    op, seen = look
    x, before = leaf(1.0), local_dispatch_key_set()

    def check(included, excluded):
        own_included, own_excluded = seen.pop()
        assert own_included == included
        assert own_excluded.has(DispatchKey.AutogradFunctionality)
        assert own_excluded.has(DispatchKey.ADInplaceOrView)
        assert own_excluded.has(DispatchKey.Tracer) == excluded.has(DispatchKey.Tracer)

    for _ in range(2):
        with ExcludeDispatchKeyGuard(DispatchKey.Tracer):
            within = local_dispatch_key_set()
            assert op(x).requires_grad
            check(*within)
            assert local_dispatch_key_set() == within
        assert op(x).requires_grad
        check(*before)
        assert local_dispatch_key_set() == before
    with IncludeDispatchKeyGuard(DispatchKey.BackendSelect):
        within = local_dispatch_key_set()
        assert op(x).requires_grad
        check(*within)


def test_a_call_that_is_not_recorded_switches_off_nothing(look):
    op, seen = look
    before = local_dispatch_key_set()
    op(xp.ones(1))
    with no_grad():
        op(leaf(1.0))
    assert seen == [before, before]


def test_dispatch_state_is_restored_after_an_error(record):
    def fail(x):
        raise ValueError("no")

    op = record("m::fail(Tensor x) -> Tensor", fail, {"x": lambda grad: grad})
    before = local_dispatch_key_set()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            op(leaf(1.0))
        assert local_dispatch_key_set() == before


def test_threads_record_for_themselves(look):
    op, seen = look
    x = leaf(1.0)

    def work(n):
        if n % 2:
            with ExcludeDispatchKeyGuard(DispatchKey.Tracer):
                return op(x).requires_grad, local_dispatch_key_set()[1].has(DispatchKey.Tracer)
        return op(x).requires_grad, not local_dispatch_key_set()[1].has(DispatchKey.Tracer)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(40))) == [(True, True)] * 40
    assert sum(excluded.has(DispatchKey.Tracer) for _, excluded in seen) == 20
