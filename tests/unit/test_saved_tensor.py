"""Hooks for saved tensors, and other looks at the graph."""

import contextvars
import gc
import weakref

import numpy as np
import pytest

from opdispatch import AutogradError, Library, Tensor, TransformError, func, no_grad, ops
from opdispatch import array_api as xp
from opdispatch.autograd import Function, grad, recording_state
from opdispatch.autograd.graph import (
    disable_saved_tensors_hooks,
    get_gradient_edge,
    increment_version,
    save_on_cpu,
    saved_tensors_hooks,
)
from tests.unit.leaf_tensors import leaf


@pytest.fixture
def as_arrays():
    """Hooks that keep copies; ``as_arrays.seen`` has what they were given."""
    seen = []

    def pack(tensor):
        seen.append(tensor)
        return np.array(tensor.detach())

    hooks = saved_tensors_hooks(pack, Tensor)
    hooks.seen = seen
    return hooks


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        result = x * y
        ctx.save_for_backward(x, y, result, None)
        return result

    @staticmethod
    def backward(ctx, grad):
        x, y, result, nothing = ctx.saved_tensors
        assert (result.requires_grad, nothing) == (True, None)
        return grad * y, grad * x


@pytest.fixture(scope="module")
def registered():
    with Library("packed", "DEF") as library:
        library.define("square(Tensor x) -> Tensor")
        library.impl("square", lambda x: Tensor(x.array**2), "CPU")

        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs, output)

        def backward(ctx, grad):
            return grad * 2 * ctx.saved_tensors[0]

        library.register_autograd("square", backward, setup_context=setup_context)
        yield ops.packed.square


CALLS = {
    "arguments": lambda x: x * xp.sin(x),
    "a result": lambda x: xp.exp(x),
    "several results": lambda x: xp.linalg.qr(xp.reshape(x, (2, 2))).R[0, :],
    "a list": lambda x: xp.concat([x * x, x])[1:],
    "an array": lambda x: x * x.array,
    "a Function": lambda x: Product.apply(x * 1, x),
    "a view": lambda x: xp.exp(x[1:]) * x[1:],
    "a write": lambda x: _written(x),
}


def _written(x):
    y = x * 1
    y[1:] = xp.exp(x[1:]) * x[:-1]
    return y


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_gradients_of_any_order_are_as_without_hooks(call, as_arrays):
    x = leaf(1.0, 2.0, 4.0, 3.0)

    def gradients():
        y = call(x)
        [first] = grad(xp.sum(y * y), x, create_graph=True)
        return first, grad(xp.sum(first * first), x)[0]

    expected = gradients()
    with as_arrays:
        found = gradients()
    assert as_arrays.seen
    for one, other in zip(found, expected, strict=True):
        assert np.allclose(np.asarray(one.detach()), np.asarray(other.detach()))


def test_hooks_apply_to_tensors_saved_by_registered_derivatives(registered, as_arrays):
    x = leaf(1.0, 2.0)
    with as_arrays:
        y = registered(x)
    assert [each is x for each in as_arrays.seen] == [True, False]
    assert grad(xp.sum(y), x)[0].array.tolist() == [2.0, 4.0]


def test_hooks_see_what_is_kept_once_and_what_is_used_each_time():
    log, x = [], leaf(2.0)
    with saved_tensors_hooks(
        lambda tensor: log.append("pack") or tensor, lambda packed: log.append("unpack") or packed
    ):
        y = xp.exp(x)
        xp.add(x, 1.0), x * 2.0, xp.exp(Tensor(np.ones(1)))  # which keep nothing
        with no_grad():
            xp.exp(x)
    xp.exp(x)
    y.backward(retain_graph=True)
    y.backward()
    assert log == ["pack", "unpack", "unpack"]


def test_the_innermost_block_counts():
    log, x = [], leaf(2.0)

    def named(name):
        return saved_tensors_hooks(lambda t: log.append(name) or t, lambda t: t)

    with named("outer"):
        with named("inner"):
            xp.exp(x)
        xp.exp(x)
        copied = contextvars.copy_context()
    xp.exp(x)
    copied.run(xp.exp, x)  # a task that has begun within the block is still in it
    assert log == ["inner", "outer", "outer"]


def test_recording_is_unwatched_after_all_blocks():
    gc.collect()  # what errors that were raised still know
    assert not recording_state.WATCHED
    with pytest.raises(KeyError), saved_tensors_hooks(lambda t: t, lambda t: t):
        raise KeyError(len(recording_state.WATCHED))
    assert not recording_state.WATCHED


def test_writes_to_what_is_packed_are_not_noticed():
    x = leaf(3.0)
    y = x * 1
    with saved_tensors_hooks(lambda t: +t, lambda t: t):
        z = y * y
    y[0] = 5.0
    z.backward()
    assert x.grad.array.tolist() == [6.0]


def test_packed_results_form_no_reference_cycle():
    x = leaf(1.0)
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        y = xp.exp(x)
    node = weakref.ref(y.grad_fn)
    gc.disable()
    try:
        del y
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("pack", "unpack", "text"),
    [
        (lambda t: t.__setitem__(0, 1.0), lambda t: t, "has written to the tensor"),
        (lambda t: t, lambda t: 3, "returned int; expected a Tensor"),
        (3, 4, "must be a function, not int"),
    ],
)
def test_hooks_are_checked(pack, unpack, text):
    def use():
        with saved_tensors_hooks(pack, unpack):
            y = xp.exp(leaf(1.0) * 1)
        y.backward()

    with pytest.raises(AutogradError, match=text):
        use()


def test_an_error_in_a_hook_is_the_callers():
    with saved_tensors_hooks(lambda t: 1 / 0, lambda t: t), pytest.raises(ZeroDivisionError):
        xp.exp(leaf(1.0))


def test_transforms_are_refused(as_arrays):
    with as_arrays, pytest.raises(TransformError, match="hooks for saved tensors"):
        func.grad(lambda x: xp.sum(xp.exp(x)))(Tensor(np.ones(1)))


def test_they_can_be_forbidden(as_arrays):
    forbidden = disable_saved_tensors_hooks("not here")
    with forbidden, pytest.raises(AutogradError, match="not here"), as_arrays:
        pass
    with as_arrays, pytest.raises(AutogradError, match="nor there"):
        disable_saved_tensors_hooks("nor there").__enter__()


def test_save_on_cpu_keeps_host_tensors_as_they_are():
    x = leaf(3.0)
    with save_on_cpu():
        y = xp.exp(x * x)
    y.backward()
    assert x.grad.array[0] == pytest.approx(6 * np.exp(9))


def test_edges_and_versions():
    x = leaf(1.0)
    y = x * 1
    assert get_gradient_edge(y) == (y.grad_fn, 0)
    assert repr(get_gradient_edge(x).node) == "<AccumulateGrad>"
    y.array[0] = 5.0  # by no operator
    increment_version([y])
    assert y._version == 1
    with pytest.raises(AutogradError, match="get_gradient_edge was given"):
        get_gradient_edge(Tensor(np.ones(1)))
    with pytest.raises(AutogradError, match="takes tensors, not int"):
        increment_version([3])
