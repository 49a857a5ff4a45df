"""Steps of the graph that are written by hand."""

import numpy as np
import pytest

from opdispatch import ArgumentError, AutogradError, Tensor, TransformError, func, no_grad
from opdispatch import array_api as xp
from opdispatch.autograd import Function, grad, gradcheck
from opdispatch.autograd.function import once_differentiable
from tests.unit.leaf_tensors import leaf


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


def test_function_records_a_node():
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


def test_function_without_gradients_is_not_recorded():
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
    [
        ((1, 2, 3), "returned 3 gradients; expected 2"),
        (("a", None), "argument 0 a str"),
        (
            (Tensor(np.ones(1)), Tensor(np.ones(1))),
            "gradient for argument 1, which is not a tensor",
        ),
    ],
)
def test_gradients_are_checked(returned, text):
    class Wrong(Cube):
        backward = staticmethod(lambda ctx, grad: returned)

    with pytest.raises(AutogradError, match=f"Wrong.backward .*{text}"):
        Wrong.apply(leaf(1.0), 1.0).backward()


def test_saved_tensors_are_checked_and_released():
    x = leaf(1.0) * 1
    y = Cube.apply(x, 1.0)
    y.backward(retain_graph=True)
    x[0] = 2.0
    with pytest.raises(AutogradError, match="CubeBackward needs was modified"):
        y.backward()
    z = Cube.apply(leaf(1.0), 1.0)
    z.backward()
    with pytest.raises(AutogradError, match="released the first time"):
        z.backward()


def test_transforms_are_refused():
    with pytest.raises(TransformError, match=r"Cube.apply .*register_autograd"):
        func.grad(lambda x: xp.sum(Cube.apply(x, 1.0)))(Tensor(np.ones(1)))


class Doubled(Function):
    """Writes to its argument."""

    @staticmethod
    def forward(ctx, x, by):
        x.array[...] *= 2  # of any code, which counts no versions
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


def test_an_argument_that_was_written_to_has_another_history_and_version():
    x = leaf(1.0, 2.0)
    y = x * 1
    assert Doubled.apply(y, 2) is y
    assert (repr(y.grad_fn), y._version) == ("<DoubledBackward>", 1)
    xp.sum(y * y).backward()
    assert x.grad.array.tolist() == [8.0, 16.0]


def test_a_view_that_was_written_to_is_a_write_to_its_base():
    class Scaled(Doubled):
        forward = staticmethod(lambda ctx, by, x: Doubled.forward(ctx, x, by))
        backward = staticmethod(lambda ctx, grad: (grad * 10, grad * 2))

    x, by = leaf(1.0, 2.0, 3.0), leaf(1.0, 1.0)
    y = x * 1
    Scaled.apply(by, y[1:])
    assert repr(y.grad_fn) == "<CopySlices>"
    assert [each.array.tolist() for each in grad(xp.sum(y), [x, by])] == [[1, 2, 2], [10, 10]]


def test_writes_that_would_falsify_the_backward_pass_are_refused():
    class Both(Doubled):
        forward = staticmethod(lambda ctx, x, by: (Doubled.forward(ctx, x, by), x * 1))

    class Lost(Doubled):
        forward = staticmethod(lambda ctx, x, by: Doubled.forward(ctx, x, by) * 1)

    class Same(Doubled):
        forward = staticmethod(lambda ctx, x, by: x)

    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        Doubled.apply(leaf(1.0), 2)
    with pytest.raises(AutogradError, match=r"BothBackward .* returned 2 results"):
        Both.apply((leaf(1.0, 2.0) * 1)[1:], 2)
    with pytest.raises(AutogradError, match=r"Lost.forward has marked .* not returned it"):
        Lost.apply(leaf(1.0, 2.0) * 1, 2)
    y = Same.apply(leaf(1.0, 2.0) * 1, 2)
    with pytest.raises(AutogradError, match="made by a Function"):
        y[0] = 1.0


@pytest.mark.parametrize("mark", ["mark_dirty", "mark_non_differentiable"])
def test_only_tensors_are_marked(mark):
    class Marks(Cube):
        forward = staticmethod(lambda ctx, x: getattr(ctx, mark)(1.0))

    with pytest.raises(ArgumentError, match=f"{mark} takes tensors, not float"):
        Marks.apply(leaf(1.0))


def test_a_backward_that_is_differentiable_once():
    class Once(Cube):
        backward = staticmethod(
            once_differentiable(lambda ctx, grad: (Tensor(grad.array * 2), None))
        )

    x = leaf(1.0, 2.0)
    assert grad(xp.sum(Once.apply(x, 1)), x)[0].array.tolist() == [2.0, 2.0]
    y = Once.apply(x, 1)
    [found] = grad(xp.sum(y * y), x, create_graph=True)
    with pytest.raises(AutogradError, match="@once_differentiable"):
        xp.sum(found).backward()
    [constant] = grad(xp.sum(Once.apply(x, 1)), x, create_graph=True)
    assert not constant.requires_grad


def test_arguments_by_name_where_forward_has_no_context():
    class Power(Function):
        forward = staticmethod(lambda x, by=2: x**by)
        setup_context = staticmethod(lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))
        backward = staticmethod(lambda ctx, grad: (grad * ctx.by, None))

    y = Power.apply(leaf(2.0), by=3)
    assert (y.array.tolist(), y.grad_fn.by, y.grad_fn.needs_input_grad) == ([8.0], 3, (True, False))
    assert Power.apply(leaf(2.0)).grad_fn.by == 2
    with pytest.raises(AttributeError):
        _ = y.grad_fn.nothing
    with pytest.raises(TypeError, match="takes no argument by the name 'by'"):
        Cube.apply(leaf(2.0), by=3)


def test_a_result_with_a_history_of_its_own_has_that_of_the_call():
    other = leaf(1.0) * 5

    class Outer(Cube):
        forward = staticmethod(lambda ctx, x: other)
        backward = staticmethod(lambda ctx, grad: grad * 7)

    x = leaf(2.0)
    y = Outer.apply(x)
    y.backward()
    assert (y.array.tolist(), x.grad.array.tolist()) == ([5.0], [7.0])
    assert repr(other.grad_fn) == "<MultiplyBackward>"


def test_a_result_that_is_given_twice_is_one_tensor():
    seen = []

    class Twice(Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx, *grads):
            seen.append([grad.array.tolist() for grad in grads])
            return grads[1] * 2

    x = leaf(1.0)
    y, again = Twice.apply(x)
    assert y is again
    xp.sum(y + again * 10).backward()
    assert (seen, x.grad.array.tolist()) == ([[[0.0], [11.0]]], [22.0])
    with no_grad():
        y, again = Twice.apply(x)
    assert y is again
    assert y.grad_fn is None


def test_a_result_without_a_gradient_is_saved_without_one():
    class Signed(Function):
        @staticmethod
        def forward(ctx, x):
            sign, number = xp.sign(x), Tensor(np.array([3]))
            ctx.save_for_backward(sign, number)
            ctx.mark_non_differentiable(sign)
            return x * sign, sign, number

        @staticmethod
        def backward(ctx, grad, *_):
            sign, number = ctx.saved_tensors
            assert not sign.requires_grad
            assert not number.requires_grad
            return grad * sign

    x = leaf(-2.0)
    y, _, _ = Signed.apply(x)
    [found] = grad(xp.sum(y), x, create_graph=True)
    assert found.array.tolist() == [-1.0]
    assert not found.requires_grad


def test_a_view_that_is_returned_under_no_grad_is_one_that_was_made_so():
    class First(Function):
        forward = staticmethod(lambda ctx, x: x[:1])

    with no_grad():
        view, plain = First.apply(x := leaf(1.0, 2.0)), x[:1]
    assert view.requires_grad
    assert plain.requires_grad
    assert view.grad_fn is None
