"""``func``: derivatives of functions, nested with each other and with batches."""

import itertools

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    AutogradError,
    BatchingFallbackWarning,
    Library,
    Tensor,
    TransformError,
    func,
    inference_mode,
    no_grad,
    ops,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad as gradients_of
from tests.unit.close_tensors import close
from tests.unit.derivative_calls import CALLS

V = np.array([1.0, 2.0])
X = np.arange(6.0).reshape(3, 2) / 5


def test_the_gradient_of_a_function():
    def function(x, scale, *, power):
        return xp.sum(x["a"] ** power * scale), {"seen": x["a"] * 2}

    arguments = ({"a": Tensor(V)}, 3.0)
    of_x, aux = func.grad(function, has_aux=True)(*arguments, power=2)
    close(of_x["a"], 6 * V)
    close(aux["seen"], 2 * V)
    (of_x, of_scale), (value, aux) = func.grad_and_value(function, argnums=(0, -1), has_aux=True)(
        *arguments, power=2
    )
    close(of_x["a"], 6 * V)
    close(of_scale, 5.0)
    close(value, 15.0)
    close(func.grad(lambda x, y: xp.sum(x) * 1.0, argnums=1)(V, V), [0, 0])


def test_levels_do_not_take_each_others_variables_for_their_own():
    """Of "perturbation confusion", Siskind and Pearlmutter 2005."""
    grad = func.grad
    close(grad(lambda x: x * grad(lambda y: x + y)(1.0))(1.0), 1.0)
    close(grad(lambda x: x * grad(lambda y: x * y)(2.0))(3.0), 6.0)
    close(grad(lambda a: a * grad(lambda b: b * b * a)(a))(3.0), 54.0)
    nested = grad(lambda a: grad(lambda b: grad(lambda c: a * b * b * c * c * c)(b))(a))
    close(nested(2.0), 3 * 4 * 4 * 2.0**3)  # b^2 c^3 at c = b: 3 b^4, then 12 b^3 a
    close(grad(lambda x: grad(lambda y: y**3)(x))(2.0), 12.0)


def test_backward_through_a_transform_reaches_outer_leaves():
    leaf = Tensor(V.copy(), requires_grad=True)
    outside = Tensor(V * 2, requires_grad=True)
    gradient = func.grad(lambda a: xp.sum(a**3 * outside))(leaf)
    [of_leaf, of_outside] = gradients_of(xp.sum(gradient), [leaf, outside])
    close(of_leaf, 6 * V * V * 2)
    close(of_outside, 3 * V**2)


def test_grad_mode():
    leaf = Tensor(V.copy(), requires_grad=True)
    with no_grad():
        gradient = func.grad(lambda a: xp.sum(a * a * leaf))(leaf)
    close(gradient, 2 * V * V)
    assert not gradient.requires_grad

    def partly(a):
        with no_grad():
            constant = a * a
        return xp.sum(a * constant)

    close(func.grad(partly)(V), V**2)
    close(
        func.grad(func.grad(lambda a: a * partly(a * V)))(3.0),
        func.grad(lambda a: partly(a * V) + xp.sum(a * V * (9 * V * V)))(3.0),
    )


def test_inference_mode():
    with inference_mode():
        close(func.grad(lambda a: xp.sum(a * a))(V), 2 * V)

    def partly(a):
        with inference_mode():
            constant = a * a
        return xp.sum(a * constant)

    close(func.grad(partly)(V), V**2)


def test_a_kernel_may_take_gradients():
    """Below Autograd, where its keys are off for what the kernel calls otherwise."""
    with Library("slopes", "DEF") as lib:
        lib.define("slope(Tensor x) -> Tensor")
        lib.impl("slope", func.grad(lambda a: xp.sum(a**3)), "CPU")
        lib.register_autograd(
            "slope",
            lambda ctx, grad: grad * 6 * ctx.saved_tensors[0],
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        leaf = Tensor(V.copy(), requires_grad=True)
        result = ops.slopes.slope(leaf)
        close(result, 3 * V**2)
        assert repr(result.grad_fn) == "<SlopeBackward>"
        close(gradients_of(xp.sum(result), leaf)[0], 6 * V)
        close(func.grad(lambda a: xp.sum(ops.slopes.slope(a)))(V), 6 * V)


def test_writes_and_views():
    def function(a):
        b = xp.zeros(3)
        b[:2] = a * 2
        part = b[1:]
        b[0] = (+part)[0] ** 2
        part[1] = a[0]
        return xp.sum(b * b)

    want = func.grad(lambda a: (4 * a[1] ** 2) ** 2 + 4 * a[1] ** 2 + a[0] ** 2)(V)
    close(func.grad(function)(V), want)

    def of_batch(a):
        b = xp.zeros_like(a)
        b[0] = a[1] * 2
        b[...] = +b * a
        return xp.sum(b)

    close(vmap(func.grad(of_batch))(X), 2 * X[:, ::-1])  # of 2 a0 a1


def test_transform_refuses_writes_to_outside_tensors():
    outside = Tensor(V.copy())

    def through_a_view(a):
        outside[:1][...] = a[:1]
        return xp.sum(outside)

    for write in (lambda a: outside.__setitem__(0, a[0]), through_a_view):
        with pytest.raises(TransformError, match="transformed by grad captures from outside"):
            func.grad(lambda a, write=write: (write(a), xp.sum(a))[1])(V)
    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        func.grad(lambda a: (a.__setitem__(0, 1.0), xp.sum(a))[1])(V)
    np.testing.assert_array_equal(outside, V)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: func.grad(lambda a: a)(V), r"one of shape \[2\] .*jacrev"),
        (lambda: func.grad(lambda a: 3)(V), "lambda> returned int"),
        (
            lambda: func.grad(xp.sum, has_aux=True)(V),
            "a pair; sum returned Tensor",
        ),
        (lambda: func.grad(xp.sum)(np.arange(3)), "but an argument is int64"),
        (lambda: func.grad(xp.sum)(3), "but an argument is int"),
        (lambda: func.grad(xp.sum, argnums=1)(V), "called with 1 positional"),
        (lambda: func.grad(xp.sum, argnums=())(V), r"argnums=\(\), but sum was called"),
        (lambda: func.grad(xp.sum, argnums="0")(V), "expected an int, or a tuple of ints"),
        (lambda: func.grad(xp.sum, argnums=(0, -1))(V), "expected each argument only once"),
        (lambda: func.vjp(xp.sum), "no primals"),
        (lambda: func.vjp(lambda a: (a, 3), V), r"lambda> returned \(Tensor, int\)"),
        (lambda: func.vjp(xp.sin, V)[1](V, V), "was given 2 gradients; expected 1"),
        (lambda: func.jacrev(lambda a: 3)(V), "lambda> returned int"),
        (lambda: func.jacrev(xp.sin, chunk_size=0), "chunk_size=0"),
    ],
)
def test_invalid_transform_arguments_raise_argument_error(call, reason):
    with pytest.raises(ArgumentError, match=reason):
        call()


def test_vjp():
    value, back, aux = func.vjp(lambda a, b: ((a * b, a), a + 1), V, 2 * V, has_aux=True)
    close(value[0], 2 * V * V)
    close(aux, V + 1)
    for _ in range(2):
        of_a, of_b = back((Tensor(V), Tensor(V)))
        close(of_a, 2 * V * V + V)
        close(of_b, V * V)
    of_a, _ = vmap(back)((Tensor(np.eye(2)), Tensor(np.zeros((2, 2)))))
    close(of_a, np.diag(2 * V))


def test_jacobians():
    matrix = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    close(func.jacrev(lambda a: Tensor(matrix) @ a)(V), matrix)
    got, aux = func.jacrev(
        lambda a, b: ({"product": xp.linalg.outer(a, b), "sum": xp.sum(b)}, a),
        argnums=(0, 1),
        has_aux=True,
        chunk_size=3,
    )(V, X[:, 0])
    close(aux, V)
    eye = np.eye(2)
    close(got["product"][0], np.einsum("ik,j->ijk", eye, X[:, 0]))
    close(got["product"][1], np.einsum("i,jk->ijk", V, np.eye(3)))
    close(got["sum"][0], [0, 0])
    close(got["sum"][1], [1, 1, 1])
    assert func.jacrev(lambda a: a[:0])(V).shape == (0, 2)


def test_hessians():
    def function(a):
        return xp.sum(xp.exp(a[0] * a) * a[1])

    got = func.hessian(function)(V)
    columns = [
        gradients_of(gradients_of(function(leaf), leaf, create_graph=True)[0][n], leaf)[0]
        for n in range(2)
        for leaf in [Tensor(V.copy(), requires_grad=True)]
    ]
    close(got, np.stack([np.asarray(each) for each in columns]))
    close(vmap(func.hessian(function))(X + 1)[0], func.hessian(function)(X[0] + 1))


def test_transforms_in_any_order():
    def function(a, b):
        return xp.sum(xp.tanh(a * b) @ xp.sin(b))

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 2)), rng.normal(size=(4, 2))
    both = vmap(vmap(func.grad(function, argnums=(0, 1)), in_dims=(None, 0)), in_dims=(0, None))
    of_a, of_b = both(a, b)
    single = func.grad(function, argnums=(0, 1))
    for i, j in itertools.product(range(3), range(4)):
        one, other = single(a[i], b[j])
        close(of_a[i, j], np.asarray(one))
        close(of_b[i, j], np.asarray(other))
    total = func.grad(
        lambda a: xp.sum(vmap(lambda row: vmap(lambda s: function(row, s))(Tensor(b)))(a))
    )
    close(total(a), np.asarray(of_a).sum(1))
    nested = func.grad(lambda a: xp.sum(vmap(func.grad(lambda r: function(r, Tensor(b[0]))))(a)))(a)
    second = np.stack([np.asarray(func.hessian(lambda r: function(r, Tensor(b[0])))(r)) for r in a])
    close(nested, second.sum(2))


def test_per_sample_gradients_of_a_network():
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4), "v": rng.normal(size=(4, 2))}
    embedding, tokens = rng.normal(size=(5, 3)), rng.integers(0, 5, (6, 2))
    targets = rng.normal(size=(6, 2))

    def loss(weights, embedding, token, target):
        hidden = xp.tanh(xp.mean(embedding[token], axis=0) @ weights["w"] + weights["b"])
        return xp.sum((hidden @ weights["v"] - target) ** 2)

    weights = {name: Tensor(each) for name, each in weights.items()}
    each = func.grad(loss, argnums=(0, 1))
    got, of_embedding = vmap(each, in_dims=(None, None, 0, 0))(
        weights, Tensor(embedding), tokens, targets
    )
    for n in range(6):
        want, wanted = each(weights, Tensor(embedding), tokens[n], targets[n])
        for name, one in want.items():
            close(got[name][n], np.asarray(one))
        close(of_embedding[n], np.asarray(wanted))


# -- every derivative under a batch --------------------------------------------------------------


def total_of(function):
    def loss(*tensors):
        result = function(*tensors)
        total = 0.0
        for n, each in enumerate(result if isinstance(result, list | tuple) else [result]):
            if each.dtype.kind == "c":
                each = xp.real(each * (1.0 + 0.5j))
            if each.dtype.kind == "f":
                total = total + xp.sum(xp.sin(each * (n + 1)))
        return total

    return loss


def beside_each_sample(call, batched):
    function, leaves = call.checked()
    arrays = [np.array(leaf.array) for leaf in leaves]
    places = tuple(n for n, each in enumerate(arrays) if each.dtype.kind in "fc")
    if not places:
        return 0
    loss = total_of(function)
    batches = [
        np.stack([each, each * (1.05 if n in places else 1)]).astype(each.dtype)
        if in_batch
        else each
        for n, (each, in_batch) in enumerate(zip(arrays, batched, strict=True))
    ]
    in_dims = tuple(0 if each else None for each in batched)
    tensors = [Tensor(each) for each in batches]
    gradient = func.grad(loss, argnums=places)
    samples = [
        gradient(*[t[n] if in_batch else t for t, in_batch in zip(tensors, batched, strict=True)])
        for n in range(2)
    ]
    want = [
        np.stack([np.asarray(each) for each in column]) for column in zip(*samples, strict=True)
    ]
    got = vmap(gradient, in_dims=in_dims)(*tensors)
    of_sum = func.grad(lambda *given: xp.sum(vmap(loss, in_dims=in_dims)(*given)), argnums=places)
    for place, one, whole, expected in zip(places, got, of_sum(*tensors), want, strict=True):
        np.testing.assert_allclose(np.asarray(one), expected, err_msg=repr(call), rtol=1e-6)
        if not batched[place]:
            expected = expected.sum(0)
        np.testing.assert_allclose(
            np.asarray(whole), expected, err_msg=repr(call), rtol=1e-6, atol=1e-12
        )
    return 1


def is_decided_by_elements(call):
    """Return whether vmap refuses the case: masks and numbers of repetitions that differ."""
    return call.operator == "repeat.Tensor" or any(each.dtype == bool for each in call.arrays)


@pytest.mark.filterwarnings(f"error::opdispatch.{BatchingFallbackWarning.__name__}")
@pytest.mark.parametrize("part", range(3))
def test_every_derivative_of_each_sample(part):
    """vmap(grad(f)) and grad(sum(vmap(f))), beside grad of each sample."""
    chosen = {}
    for call in CALLS:  # one of each operator: all of them take half a minute
        chosen.setdefault(call.operator, []).append(call)
    compared = 0
    for calls in list(chosen.values())[part::3]:
        call = next((each for each in calls if not is_decided_by_elements(each)), None)
        if call is not None:
            compared += beside_each_sample(call, [True] * len(call.arrays))
    assert compared > 20


def test_every_derivative_where_one_argument_is_the_same_for_all():
    compared = 0
    for operator in (
        "matmul",
        "getitem.Tensor",
        "take",
        "setitem_.Tensor",
        "linalg_solve",
        "where",
    ):
        for call in [each for each in CALLS if each.operator == operator][:4]:
            if is_decided_by_elements(call):
                continue
            for place in range(len(call.arrays)):
                compared += beside_each_sample(call, [n != place for n in range(len(call.arrays))])
    assert compared > 10


# -- detach ----------------------------------------------------------------------------------------


def test_detached_tensor_has_no_gradient_at_any_level():
    x = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]]))

    def total(x):
        return xp.sum(x.detach() * x)

    assert func.grad(total)(x).array.tolist() == x.array.tolist()
    assert vmap(func.grad(total))(x).array.tolist() == x.array.tolist()
    assert func.grad(lambda x: xp.sum(vmap(total)(x)))(x).array.tolist() == x.array.tolist()
    second = func.grad(lambda x: xp.sum(func.grad(total)(x)))(x)
    assert second.array.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_detached_tensor_shares_elements_under_vmap():
    def write(x):
        x = x * 1
        x.detach()[0] = 10.0
        return xp.sum(x)

    x = Tensor(np.ones((2, 2)))
    assert vmap(write)(x).array.tolist() == [11.0, 11.0]
    assert vmap(func.grad(write))(x).array.tolist() == [[1.0, 1.0], [1.0, 1.0]]
