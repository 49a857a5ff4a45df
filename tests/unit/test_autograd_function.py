"""Steps of the graph that are written by hand."""

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, TransformError, func, no_grad
from opdispatch import array_api as xp
from opdispatch.autograd import Function, grad, gradcheck


class Cube(Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        ctx.save_for_backward(x)
        return Tensor(x.array**3 * by)  # of any code

    @staticmethod
    def backward(ctx, grad):
        [x] = ctx.saved_tensors
        return grad * 3 * x * x * ctx.by, None


class Exp(Function):
    @staticmethod
    def forward(x):
        return xp.exp(x), xp.sign(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, grad, _):
        return grad * ctx.saved_tensors[0]


def leaf(*numbers):
    return Tensor(np.array(numbers), requires_grad=True)


def test_it_is_a_step_of_the_graph():
    x = leaf(1.0, 2.0)
    y = Cube.apply(x, 2.0)
    assert repr(y.grad_fn) == "<CubeBackward>"
    assert gradcheck(lambda x: Cube.apply(x, 2.0), x)
    [first] = grad(xp.sum(y), x, create_graph=True)
    [second] = grad(xp.sum(first), x)
    assert (first.array.tolist(), second.array.tolist()) == ([6.0, 24.0], [12.0, 24.0])


def test_a_context_that_is_set_up_afterwards():
    x = leaf(0.0, 1.0)
    y, sign = Exp.apply(x)
    assert (y.requires_grad, sign.requires_grad) == (True, False)
    [first] = grad(xp.sum(y), x, create_graph=True)
    assert np.allclose(np.asarray(grad(xp.sum(first), x)[0]), np.exp([0.0, 1.0]))


def test_it_is_recorded_only_where_gradients_are():
    assert Cube.apply(Tensor(np.ones(1)), 1.0).grad_fn is None
    with no_grad():
        assert not Cube.apply(leaf(1.0), 1.0).requires_grad


def test_an_argument_that_is_returned_has_the_history():
    class Scaled(Function):
        forward = staticmethod(lambda ctx, x: x)
        backward = staticmethod(lambda ctx, grad: grad * 10)

    x = leaf(1.0)
    Scaled.apply(x).backward()
    assert x.grad.array.tolist() == [10.0]


@pytest.mark.parametrize(
    ("returned", "text"),
    [((1, 2, 3), "returned 3 gradients; expected 2"), (("a", None), "argument 0 a str")],
)
def test_gradients_are_checked(returned, text):
    class Wrong(Cube):
        backward = staticmethod(lambda ctx, grad: returned)

    with pytest.raises(AutogradError, match=f"Wrong.backward .*{text}"):
        Wrong.apply(leaf(1.0), 1.0).backward()


def test_what_was_saved_is_checked_and_let_go_of():
    x = leaf(1.0) * 1
    y = Cube.apply(x, 1.0)
    y.backward(retain_graph=True)
    x[0] = 2.0
    with pytest.raises(AutogradError, match="CubeBackward needs was modified"):
        y.backward()
    z = Cube.apply(leaf(1.0), 1.0)
    z.backward()
    with pytest.raises(AutogradError, match="let go of the first time"):
        z.backward()


def test_transforms_are_refused():
    with pytest.raises(TransformError, match=r"Cube.apply .*register_autograd"):
        func.grad(lambda x: xp.sum(Cube.apply(x, 1.0)))(Tensor(np.ones(1)))
