"""``register_autograd``: the derivative of an operator of one's own."""

import gc
import weakref

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    Library,
    OperatorNotFoundError,
    RegistrationError,
    Tensor,
    no_grad,
    ops,
    register_autograd,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad, gradcheck, gradgradcheck
from tests.unit.leaf_tensors import leaf


def plain(value):
    return value.array if isinstance(value, Tensor) else value


@pytest.fixture
def lib():
    with Library("reg", "DEF") as library:
        library.define("product(Tensor x, Tensor y, float scale=1.0) -> Tensor")
        library.impl("product", lambda x, y, scale: Tensor(plain(x) * plain(y) * scale), "CPU")
        yield library


def keep(ctx, inputs, output):
    x, y, ctx.scale = inputs
    ctx.save_for_backward(x, y)


def product_backward(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y * ctx.scale, grad * x * ctx.scale, None


def test_the_registered_function_is_the_derivative(lib):
    lib.register_autograd("product", product_backward, setup_context=keep)
    x, y = leaf(1.0, 2.0), leaf(3.0, -1.0)
    z = ops.reg.product(x, y, 2.0)
    assert z.grad_fn.name == "ProductBackward"
    assert gradcheck(lambda x, y: ops.reg.product(x, y, 2.0), (x, y))
    assert gradgradcheck(lambda x, y: ops.reg.product(x, y, 2.0), (x, y))
    row = leaf([3.0], [4.0])  # what was broadcast is added up
    assert gradcheck(ops.reg.product, (x, row))


def test_calls_without_gradients_do_not_call_setup_context(lib):
    seen = []
    lib.register_autograd("product", product_backward, setup_context=lambda **_: seen.append(1))
    x = leaf(1.0)
    assert not ops.reg.product(x.detach(), np.ones(1)).requires_grad
    with no_grad():
        assert not ops.reg.product(x, x).requires_grad
    assert ops.reg.product(np.ones(1), np.ones(1)).array.tolist() == [1]
    assert seen == []


def test_derivative_ends_with_its_library(lib):
    with Library("reg", "FRAGMENT") as fragment:
        register_autograd("reg::product", product_backward, setup_context=keep, lib=fragment)
        xp.sum(ops.reg.product(leaf(1.0), leaf(2.0))).backward()
    with pytest.raises(AutogradError, match="reg::product has no derivative"):
        ops.reg.product(leaf(1.0), leaf(2.0)).backward()


def test_operators_by_handle_and_by_name(lib):
    register_autograd(ops.reg.product.default, product_backward, setup_context=keep, lib=lib)
    assert ops.reg.product(leaf(1.0), leaf(2.0)).grad_fn.name == "ProductBackward"
    with pytest.raises(OperatorNotFoundError):
        register_autograd("reg::nothing", product_backward, lib=lib)


def test_the_context_says_which_gradients_are_wanted(lib):
    wanted = []

    def backward(ctx, grad):
        wanted.append(ctx.needs_input_grad)
        return product_backward(ctx, grad)

    lib.register_autograd("product", backward, setup_context=keep)
    xp.sum(ops.reg.product(xp.ones(1), leaf(1.0), 3.0)).backward()
    assert wanted == [(False, True, False)]


def test_without_a_context(lib):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: Tensor(plain(x) * 2), "CPU")
    lib.register_autograd("twice", lambda ctx, grad: grad * 2)
    assert gradgradcheck(ops.reg.twice, leaf(1.0, 2.0))


def test_results_are_kept_without_a_circle(lib):
    lib.define("exp(Tensor x) -> Tensor")
    lib.impl("exp", lambda x: Tensor(np.exp(plain(x))), "CPU")
    lib.register_autograd(
        "exp",
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    x = leaf(1.0, 2.0)
    assert gradgradcheck(ops.reg.exp, x)
    gc.disable()
    try:
        y = ops.reg.exp(x)
        node = weakref.ref(y.grad_fn)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_saved_values_are_checked_and_released(lib):
    lib.register_autograd("product", product_backward, setup_context=keep)
    x = leaf(1.0, 2.0) * 1
    y = ops.reg.product(x, x)
    xp.sum(y).backward(retain_graph=True)
    x[0] = 5.0
    with pytest.raises(AutogradError, match="ProductBackward needs was modified by an in-place"):
        xp.sum(y).backward()
    x = leaf(1.0)
    y = ops.reg.product(x, x)
    y.backward()
    with pytest.raises(AutogradError, match="released the first time"):
        y.backward()


@pytest.fixture
def split(lib):
    """The first and the second half of a tensor, and how many elements that is."""
    lib.define("halves(Tensor x) -> (Tensor first, Tensor second, Tensor count)")
    lib.impl(
        "halves",
        lambda x: (
            *(Tensor(each) for each in np.split(plain(x), 2)),
            Tensor(np.array(plain(x).size)),
        ),
        "CPU",
    )
    return ops.reg.halves


def test_results_without_a_gradient_have_zeros_or_none(lib, split):
    seen = []

    def backward(ctx, first, second, count):
        seen.append(second if second is None else second.array.tolist())
        return xp.concat([first, xp.zeros_like(first) if second is None else second])

    handle = lib.register_autograd("halves", backward)
    x = leaf(1.0, 2.0, 3.0, 4.0)
    first, _, count = split(x)
    assert (first.requires_grad, count.requires_grad) == (True, False)
    xp.sum(first * 2).backward()
    assert x.grad.array.tolist() == [2, 2, 0, 0]
    handle.close()
    lib.register_autograd(
        "halves",
        backward,
        setup_context=lambda ctx, inputs, output: ctx.set_materialize_grads(False),
    )
    xp.sum(split(x)[0]).backward()
    assert seen == [[0, 0], None]


def test_lists_of_tensors_have_lists_of_gradients(lib):
    lib.define("scaled(Tensor[] xs, float by) -> Tensor[]")
    lib.impl("scaled", lambda xs, by: [Tensor(plain(x) * by) for x in xs], "CPU")

    def keep_factor(ctx, inputs, output):
        ctx.by = inputs[1]
        assert [type(each) for each in output] == [Tensor, Tensor]

    lib.register_autograd(
        "scaled",
        lambda ctx, grads: ([grad * ctx.by for grad in grads], None),
        setup_context=keep_factor,
    )
    x, y = leaf(1.0), leaf(2.0, 3.0)
    assert gradcheck(lambda x, y: ops.reg.scaled([x, y], 3.0), (x, y))
    [of_y] = grad(xp.sum(ops.reg.scaled([x.detach(), y], 3.0)[1]), y)
    assert of_y.array.tolist() == [3, 3]


def test_lists_of_numbers_are_one_argument(lib):
    lib.define("rolled(Tensor[] xs, int[] by, Tensor?[] others) -> Tensor")
    lib.impl("rolled", lambda xs, by, others: Tensor(plain(xs[0]) * by[0]), "CPU")
    wanted = []

    def backward(ctx, grad):
        wanted.append(ctx.needs_input_grad)
        return [grad * 2], None, [None, grad]

    lib.register_autograd("rolled", backward)
    x, y = leaf(1.0), leaf(1.0)
    ops.reg.rolled([x], [2, 3], [None, y]).backward()
    assert wanted == [([True], False, [False, True])]
    assert (x.grad.array.tolist(), y.grad.array.tolist()) == ([2], [1])


def test_an_argument_that_is_the_result_keeps_its_own_history(lib):
    lib.define("first(Tensor[] xs) -> Tensor")
    lib.impl("first", lambda xs: xs[0], "CPU")
    lib.define("same(Tensor x, Tensor?[] others) -> Tensor[]")
    lib.impl("same", lambda x, others: [x, others[1]], "CPU")
    lib.register_autograd("first", lambda ctx, grad: [grad * 3, None])
    lib.register_autograd("same", lambda ctx, grads: (grads[0] * 5, [None, None]))
    x, y = leaf(1.0), leaf(1.0)
    result = ops.reg.first([x, y])
    assert result is not x
    assert x.is_leaf
    first, other = ops.reg.same(result, [None, y])
    assert y.is_leaf
    assert other.grad_fn is first.grad_fn
    first.backward()
    assert x.grad.array.tolist() == [15]


def test_keyword_only_arguments_come_by_name(lib):
    lib.define("shifted(Tensor x, *, float by=1.0) -> Tensor")
    lib.impl("shifted", lambda x, *, by: Tensor(plain(x) * by + by), "CPU")

    def keep_by(ctx, inputs, keyword_only_inputs, output):
        assert len(inputs) == 1
        ctx.by = keyword_only_inputs["by"]

    lib.register_autograd("shifted", lambda ctx, grad: grad * ctx.by, setup_context=keep_by)
    assert gradcheck(lambda x: ops.reg.shifted(x, by=4.0), leaf(1.0, 2.0))
    lib.define("named(Tensor x, *, float lambda=1.0, int by=3) -> Tensor")
    lib.impl("named", lambda x, **named: Tensor(plain(x) * named["lambda"] * named["by"]), "CPU")
    seen = []
    lib.register_autograd(
        "named",
        lambda ctx, grad: grad * 2,
        setup_context=lambda ctx, inputs, keyword_only_inputs, output: seen.append(
            keyword_only_inputs
        ),
    )
    assert ops.reg.named(leaf(1.0), **{"lambda": 2.0}).array.tolist() == [6]
    assert seen == [{"lambda": 2.0, "by": 3}]


def test_a_backward_of_no_operators_is_differentiable_once(lib):
    lib.register_autograd(
        "product",
        lambda ctx, grad: (Tensor(plain(grad) * plain(ctx.saved_tensors[1])), None, None),
        setup_context=keep,
    )
    x, y = leaf(1.0), leaf(2.0)
    [first] = grad(ops.reg.product(x, y), x, create_graph=True)
    assert first.array.tolist() == [2]
    assert not first.requires_grad


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (lambda ctx, grad: grad, r"returned 1 gradients; expected 3, .*\(x, y, scale\)"),
        (lambda ctx, grad: (grad, grad, grad), "a gradient for 'scale', which is not a tensor"),
        (lambda ctx, grad: (1.0, None, None), "for 'x' a float; expected a Tensor or None"),
        (lambda ctx, grad: (xp.ones(7), None, None), r"shape \[7\] for argument 0, .* \[2\]"),
        (lambda ctx, grad: (ctx.nothing, None, None), "nothing"),
    ],
)
def test_invalid_gradients_raise(lib, backward, message):
    lib.register_autograd("product", backward, setup_context=keep)
    error = AttributeError if message == "nothing" else AutogradError
    with pytest.raises(error, match=message):
        xp.sum(ops.reg.product(leaf(1.0, 2.0), leaf(2.0, 3.0))).backward()


def test_arrays_beside_tensors_are_kept_as_tensors(lib):
    lib.register_autograd("product", product_backward, setup_context=keep)
    x = np.array([2.0, 3.0])
    [of_y] = grad(xp.sum(ops.reg.product(x, y := leaf(1.0, 1.0))), y)
    assert type(of_y) is Tensor
    assert of_y.array.tolist() == [2, 3]


def test_save_for_backward_refuses_other_values(lib):
    lib.register_autograd(
        "product",
        product_backward,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    with pytest.raises(ArgumentError, match="keeps tensors, not float"):
        ops.reg.product(leaf(1.0), leaf(2.0))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("f(Tensor(a!) x) -> Tensor(a!)", "it writes to its arguments"),
        ("f(Tensor(a) x) -> Tensor(a)", "it gives views"),
        ("f(Tensor x) -> ()", "it returns nothing"),
        ("f(Tensor x, *, Tensor y) -> Tensor", "keyword-only argument 'y' is a tensor"),
    ],
)
def test_operators_that_can_have_none(lib, schema, reason):
    lib.define(schema)
    with pytest.raises(RegistrationError, match=reason):
        lib.register_autograd("f", product_backward)


@pytest.mark.parametrize(
    ("backward", "setup_context", "message"),
    [
        (None, None, "backward of reg::product is of type NoneType"),
        (3, None, "backward of reg::product is of type int"),
        (product_backward, "keep", "setup_context of reg::product is of type str"),
    ],
)
def test_backward_that_cannot_be_called_raises_registration_error(
    lib, backward, setup_context, message
):
    with pytest.raises(RegistrationError, match=message):
        lib.register_autograd("product", backward, setup_context=setup_context)


@pytest.mark.parametrize(
    "gradients", [lambda g: g * 3, lambda g: (g * 3, None), lambda g: (g * 3, None, None)]
)
def test_numbers_that_have_a_default_need_no_none(gradients):
    with Library("autograd_defaults", "DEF") as library:
        library.define("triple(Tensor x, int by=3) -> Tensor")
        library.impl("triple", lambda x, by: Tensor(x.array * by), "CPU")
        library.register_autograd("triple", lambda ctx, grad: gradients(grad))
        x = Tensor(np.ones(2), requires_grad=True)
        ops.autograd_defaults.triple(x).backward(Tensor(np.ones(2)))
    assert x.grad.array.tolist() == [3.0, 3.0]


def test_a_result_of_integers_is_kept_as_a_constant(lib):
    lib.define("argsorted(Tensor x) -> (Tensor, Tensor)")
    lib.impl("argsorted", lambda x: (xp.sort(x), xp.argsort(x)), "CPU")

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output[1])

    def backward(ctx, grad, _):
        [places] = ctx.saved_tensors
        assert not places.requires_grad
        return xp.take(grad, xp.argsort(places))

    lib.register_autograd("argsorted", backward, setup_context=setup_context)
    x = leaf(3.0, 1.0, 2.0)
    [found] = grad(xp.sum(ops.reg.argsorted(x)[0] * np.array([1.0, 2.0, 3.0])), x)
    assert found.array.tolist() == [3.0, 1.0, 2.0]


def test_gradients_for_tensors_of_an_optional_list_that_have_none(lib):
    lib.define("total(Tensor x, Tensor[]? others) -> Tensor")
    lib.impl("total", lambda x, others: sum(map(plain, others), plain(x)), "CPU")
    lib.register_autograd("total", lambda ctx, grad: (grad, [grad, grad]))
    x, y = leaf(1.0), leaf(2.0)
    ops.reg.total(x, [Tensor(np.ones(1)), y]).backward()
    assert (x.grad.array.tolist(), y.grad.array.tolist()) == ([1.0], [1.0])


def test_no_result_is_marked_as_not_differentiable(lib):
    def mark(ctx, inputs, output):
        assert not hasattr(ctx, "mark_non_differentiable")
        keep(ctx, inputs, output)

    lib.register_autograd("product", product_backward, setup_context=mark)
    assert ops.reg.product(leaf(1.0), leaf(2.0)).requires_grad
