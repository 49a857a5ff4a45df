"""Gradients of remote tensors: the graph is where the data is; one call goes back through it."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import (
    DispatchKey,
    FlopCounterMode,
    LoggingMode,
    Tensor,
    TorchDispatchMode,
    autocast,
    no_grad,
)
from opdispatch import array_api as xp
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = 1
X = np.array([[1.0, 2.0], [3.0, 4.0]])


def test_one_call_goes_back_through_what_was_called_there(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    x = standard.put(np.ones((2, 2)))
    loss = xp.sum(xp.exp(w * x) * 2)
    [gradient] = standard.grad(loss, w)
    assert gradient.interpreter == w.interpreter
    np.testing.assert_allclose(gradient.numpy(), 2 * np.exp(X))
    with pytest.raises(oc.KernelError, match="a second time"):
        standard.grad(loss, w)


def test_detached_remote_tensor_is_not_recorded(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    y = w * w
    constant = y.detach()
    assert (y.requires_grad, constant.requires_grad) == (True, False)
    assert constant.interpreter == w.interpreter
    np.testing.assert_array_equal(constant.cpu().numpy(), X * X)
    [gradient] = standard.grad(xp.sum(y * constant), w)
    np.testing.assert_array_equal(gradient.numpy(), 2 * X * X * X)


def test_views_and_intermediate_values_are_part_of_the_graph(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    row = (w * 3)[0]  # kept as a copy, since it is a view
    of_row, of_w = standard.grad(xp.sum(row * row), [row, w])
    np.testing.assert_array_equal(of_row.numpy(), 2 * 3 * X[0])
    np.testing.assert_array_equal(of_w.numpy(), [2 * 9 * X[0], [0, 0]])


def test_gradients_given_unused_inputs_and_second_derivatives(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    other = standard.put(Tensor(X, requires_grad=True))
    y = xp.exp(w)
    first, none = standard.grad(
        y, [w, other], standard.put(np.full((2, 2), 3.0)), create_graph=True, allow_unused=True
    )
    assert none is None
    [second] = standard.grad(xp.sum(first), w)
    np.testing.assert_allclose(second.numpy(), 3 * np.exp(X))
    with pytest.raises(oc.KernelError, match="input 1 of grad was not used"):
        standard.grad(xp.sum(w * 1), [w, other])


def test_gradient_descent_moves_nothing(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    for _ in range(5):
        [gradient] = standard.grad(xp.sum(w * w), w)
        with no_grad():
            w -= gradient * 0.1
    np.testing.assert_allclose(w.numpy(), X * 0.8**5)


def test_a_program_goes_back_through_its_own_calls(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    v = standard.put(Tensor(X + 1, requires_grad=True))

    @standard.as_program
    def product_rule(x, v):
        ops = standard.ops.array
        of_w, of_v = standard.grad(loss := ops.sum(ops.multiply(ops.exp(x), v)), [x, v])
        [of_x] = standard.grad(ops.sum(ops.multiply(w, x)), w)  # is not an argument
        return loss, of_w, of_v, of_x

    loss, of_w, of_v, of_x = product_rule(w, v)
    assert np.isclose(loss.item(), np.sum(np.exp(X) * (X + 1)))
    np.testing.assert_allclose(of_w, np.exp(X) * (X + 1))
    np.testing.assert_allclose(of_v, np.exp(X))
    np.testing.assert_array_equal(of_x, 2 * X)


class PassingOn(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_calls_under_modes_are_recorded_where_the_data_is(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    modes = [
        [PassingOn()],
        [PassingOn(DispatchKey.PreDispatch)],
        [LoggingMode((lines := []).append), PassingOn()],
        [FlopCounterMode(display=False), PassingOn(DispatchKey.PreDispatch), PassingOn()],
    ]
    for each in modes:
        with ExitStack() as stack:
            for mode in each:
                stack.enter_context(mode)
            y = w * 2
            y[0] = 0.0
            [gradient] = standard.grad(xp.sum(xp.exp(y)), w)
            with no_grad():
                unrecorded = xp.exp(w)
        np.testing.assert_allclose(gradient.numpy(), [[0, 0], 2 * np.exp(2 * X[1])])
        with pytest.raises(oc.KernelError, match="does not require a gradient"):
            standard.grad(xp.sum(unrecorded), w)
    assert "array::exp(float64[2, 2]) -> float64[2, 2]" in lines


def test_autocast_state_around_a_mode_applies_remotely(standard: oc.Session):
    w = standard.put(Tensor(X.astype(np.float32), requires_grad=True))
    with PassingOn():
        assert (w @ w).dtype == np.float32
        with autocast("cpu"):
            assert str((w @ w).dtype) == "bfloat16"
    with autocast("cpu"), PassingOn():
        assert str((w @ w).dtype) == "bfloat16"


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_tensor_of_this_process_does_not_keep_calls_from_being_recorded(
    standard: oc.Session, requires_grad: bool
):
    w = standard.put(Tensor(X, requires_grad=True))
    here = Tensor(X + 1, requires_grad=requires_grad)
    for function, expected in {
        xp.multiply: X + 1,
        xp.logaddexp: 1 / (1 + np.exp(np.ones((2, 2)))),  # keeps its result
        xp.matmul: np.ones((2, 2)) @ (X + 1).T,
    }.items():
        [gradient] = standard.grad(xp.sum(function(w, here)), w)
        np.testing.assert_allclose(gradient.numpy(), expected)


@pytest.mark.parametrize("direct", [True, False])
def test_grad_mode_goes_with_the_call(shared_daemon: RunningDaemon, standard: oc.Session, direct):
    w = standard.put(Tensor(X, requires_grad=True))
    with pytest.raises(oc.KernelError, match="a leaf that requires gradients"):
        w[0] = 1.0
    with no_grad():
        y = xp.exp(w)
        with standard.program() as p:
            p.output(p.ops.array.exp(w), remote=True)
    for unrecorded in (y, p.result):
        with pytest.raises(oc.KernelError, match="does not require a gradient"):
            standard.grad(xp.sum(unrecorded), w)
    with shared_daemon.connect(direct=direct) as session:
        tensor = Tensor(X, requires_grad=True)
        for _ in range(3):
            with no_grad():
                result = session.ops.array.exp(tensor)
            assert not getattr(result, "requires_grad", False)
            assert session.ops.array.exp(tensor).requires_grad


def test_gradient_of_a_plain_array_raises_kernel_error(standard: oc.Session):
    x = standard.put(X)
    with pytest.raises(oc.KernelError, match="takes tensors, but was given an array"):
        standard.grad(xp.sum(x), x)


async def test_from_asyncio(shared_daemon: RunningDaemon, standard: oc.Session):
    async with oc.aio.connect(shared_daemon.address) as session:
        w = await session.put(Tensor(X, requires_grad=True))
        y = await session.call("array::exp", w, remote=True)
        loss = await session.call("array::sum", y, remote=True)
        [gradient] = await session.grad(loss, w)
        np.testing.assert_allclose(await gradient.numpy(), np.exp(X))

        @session.as_program
        def again(w):
            loss = session.ops.array.sum(session.ops.array.exp(w))
            return session.grad(loss, w)

        [gradient] = await again(w)
        np.testing.assert_allclose(gradient, np.exp(X))


def test_arithmetic_in_place_keeps_saved_values(standard: oc.Session):
    w = standard.put(Tensor(X, requires_grad=True))
    y = w * 1
    y *= w
    assert (w.requires_grad, y.requires_grad) == (True, True)
    [gradient] = standard.grad(xp.sum(y), w)
    np.testing.assert_array_equal(gradient.numpy(), 2 * X)
