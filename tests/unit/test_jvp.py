"""``func.jvp``: derivatives along directions."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    Tensor,
    TransformError,
    enable_grad,
    func,
    functionalize,
    inference_mode,
    no_grad,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad as gradients_of
from tests.unit.close_tensors import close

INF, NAN = np.inf, np.nan
V = np.array([1.0, 2.0])
T = np.array([1.0, -3.0])
EYE = np.eye(2)


def test_a_directional_derivative():
    value, moved, aux = func.jvp(
        lambda a, scale: (
            {"product": a["x"] * scale, "place": xp.argmax(a["x"])},
            (a["x"], "seen"),
        ),
        ({"x": Tensor(V)}, 3.0),
        ({"x": Tensor(T)}, 0.5),
        has_aux=True,
    )
    close(value["product"], 3 * V)
    close(moved["product"], 3 * T + 0.5 * V)
    close(value["place"], 1)
    close(moved["place"], 0)
    assert moved["place"].dtype == value["place"].dtype
    close(aux[0], V)
    assert aux[1] == "seen"


def test_complex_functions():
    """Real-linear, as derivatives of complex functions are that are not holomorphic."""
    z, dz = V + 1j, T + 2j
    for function, want in (
        (lambda a: a * a, 2 * z * dz),
        (lambda a: xp.conj(a) * a, 2 * (z.conj() * dz).real + 0j),
        (xp.abs, (z.conj() * dz).real / abs(z)),
        (xp.imag, dz.imag),
    ):
        close(func.jvp(function, (z,), (dz,))[1], want)
        close(func.linearize(function, z)[1](dz), want)
    close(func.jvp(lambda a: a * 1j, (V,), (T,))[1], T * 1j)
    close(func.jvp(lambda a: a * 1j, (z,), (T,))[1], T * 1j)


def test_results_that_depend_on_nothing():
    outside = Tensor(V.copy())
    value, moved = func.jvp(lambda a: (a, a, outside), (V,), (T,))
    close(value[2], V)
    for got, want in zip(moved, (T, T, 0 * V), strict=True):
        close(got, want)
    with pytest.raises(ArgumentError, match="result 2 of <lambda> does not"):
        func.jvp(lambda a: (a, a, outside), (V,), (T,), strict=True)
    func.jvp(lambda a: a, (V,), (T,), strict=True)


def test_grad_mode_governs_the_backward_pass():
    def partly(a):
        with no_grad():
            b = a * a
        return a * b

    close(func.jvp(partly, (V,), (T,))[1], 3 * V * V * T)
    close(func.jvp(lambda a: a * a.detach(), (V,), (T,))[1], V * T)
    leaf = Tensor(V.copy(), requires_grad=True)
    with no_grad():
        value, moved = func.jvp(partly, (leaf,), (T,))
    close(moved, 3 * V * V * T)
    assert not value.requires_grad
    assert not moved.requires_grad
    # Within, the block is still about the levels below, also in what is called with gradients on.
    value, moved = func.jvp(no_grad()(lambda a: a * a), (leaf,), (T,))
    assert not value.requires_grad
    with no_grad():
        value, _ = func.jvp(enable_grad()(lambda a: a * a), (leaf,), (T,))
    assert not value.requires_grad
    value, moved = func.jvp(lambda a: a * a, (leaf,), (T,))
    close(gradients_of(xp.sum(value * value), leaf, retain_graph=True)[0], 4 * V**3)
    close(gradients_of(xp.sum(moved), leaf)[0], 2 * T)


def test_grad_mode_between_levels():
    """no_grad in the function of jvp, which is in that of grad: that has no gradient of it."""

    def inner(a):
        with no_grad():
            b = a * a
        return a * b

    def outer(a):
        value, _ = func.jvp(inner, (a,), (Tensor(T),))
        return xp.sum(value)

    close(func.grad(outer)(V), V * V)
    close(func.jvp(func.grad(lambda a: xp.sum(inner(a))), (V,), (T,))[1], 2 * V * T)
    close(func.jvp(no_grad()(func.grad(lambda a: xp.sum(a**3))), (V,), (T,))[1], 6 * V * T)


def test_inference_mode():
    with inference_mode():
        close(func.jvp(lambda a: a * a, (V,), (T,))[1], 2 * V * T)


def test_levels_do_not_take_each_others_tangents_for_their_own():
    """Of "perturbation confusion", Siskind and Pearlmutter 2005."""

    def along_one(function, at):
        return func.jvp(function, (at,), (1.0,))[1]

    close(along_one(lambda x: x * along_one(lambda y: x + y, 1.0), 1.0), 1.0)
    close(along_one(lambda x: x * along_one(lambda y: x * y, 2.0), 3.0), 6.0)
    close(along_one(lambda x: x * func.grad(lambda y: x * y)(2.0), 3.0), 6.0)
    close(func.grad(lambda x: x * along_one(lambda y: x * y * y, x))(2.0), 6 * 2.0**2)
    close(along_one(lambda x: along_one(lambda y: y**3, x), 2.0), 12.0)


def test_writes_and_views():
    def function(a):
        b = xp.zeros(3)
        b[:2] = a * 2
        part = b[1:]
        b[0] = (+part)[0] ** 2
        part[1] = a[0]
        return b * b

    want = np.asarray(func.jacrev(function)(V))
    close(func.jvp(function, (V,), (T,))[1], want @ T)
    close(func.jacfwd(function)(V), want)
    close(functionalize(lambda a: func.jvp(function, (a,), (Tensor(T),))[1])(Tensor(V)), want @ T)
    close(func.jvp(functionalize(function, remove="mutations_and_views"), (V,), (T,))[1], want @ T)
    outside = Tensor(V.copy())
    with pytest.raises(
        TransformError, match="which is an argument of the function transformed by jvp"
    ):
        func.jvp(lambda a: outside.__setitem__(0, a[0]), (V,), (T,))
    np.testing.assert_array_equal(outside, V)


def test_writes_to_what_was_computed_carry_tangents():
    def added(a):
        b = xp.exp(a)
        b += 1
        b *= a
        return b

    close(func.jvp(added, (V,), (T,))[1], (np.exp(V) * V + np.exp(V) + 1) * T)
    close(func.linearize(added, V)[1](T), (np.exp(V) * V + np.exp(V) + 1) * T)
    close(func.jacfwd(added)(V), np.diag(np.exp(V) * V + np.exp(V) + 1))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: _written_row(a, b, lambda z: z[0]),
        lambda a, b: _written_row(a, b, lambda z: xp.permute_dims(z, (1, 0))[0]),
    ],
)
def test_writes_have_room_for_the_samples_of_all_levels(function):
    """Batch the target by the inner level, and the value by both."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, 4, 3, 3))

    for transform in (func.jacfwd, func.jacrev, func.hessian):

        def derivative(a, b, transform=transform):
            of = function if transform is not func.hessian else lambda *ab: xp.sum(function(*ab))
            return transform(of, argnums=1)(a, b)

        nested = vmap(derivative)(a, b)
        for n in range(4):
            close(nested[n], derivative(a[n], b[n]))


def _written_row(a, b, view):
    z = xp.sin(a)
    row = view(z)
    row += b[0] * b[1]
    row[:2] = b[1, :2] ** 2
    return z * b


def test_a_write_to_a_column_leaves_nothing_of_what_was_there():
    """Also where the gradient is no number."""

    def function(a, b):
        z = xp.sin(a)
        rows = xp.permute_dims(z, (1, 0))
        rows[0] = 1.0
        return z * b

    b = np.array([[INF, 1.0], [NAN, 2.0]])
    want = np.stack([[0.0, 0.0], np.cos(V) * b[:, 1]], axis=1)
    a = np.stack([V, V], axis=1)
    close(func.grad(lambda a: xp.sum(function(a, b)))(a), want)
    close(vmap(func.grad(lambda a: xp.sum(function(a, b))))(a[None])[0], want)
    batch = vmap(func.grad(lambda a, b: xp.sum(function(a, b))))
    close(batch(a[None], b[None])[0], want)


def test_writes_are_seen_by_all_views_of_what_is_written_to():
    def function(a):
        b = xp.zeros((2, 2))
        row, column, inner = b[0], b[:, 0], b[0][1:]
        row[...] = a  # b is written to before anything in it moves
        column *= 3.0
        inner += column[1:]
        b[1] = row * 2
        return b, row, column, inner

    values, tangents = func.jvp(function, (V,), (T,))
    want = func.jacrev(function)(V)
    _, forward = func.linearize(function, V)
    for value, got, again, jacobian in zip(values, tangents, forward(T), want, strict=True):
        close(got, np.asarray(jacobian) @ T)
        close(again, np.asarray(jacobian) @ T)
        assert got.shape == value.shape


def test_a_batch_of_directions_and_of_places():
    def function(a):
        return xp.tanh(a * xp.sum(a))

    want = np.asarray(func.jacrev(function)(V))
    close(vmap(lambda t: func.jvp(function, (Tensor(V),), (t,))[1])(EYE), want.T)
    both = vmap(lambda a, t: func.jvp(function, (a,), (t,))[1])(np.stack([V, T]), EYE)
    close(both[0], want[:, 0])
    close(func.jvp(vmap(function), (np.stack([V, T]),), (EYE,))[1][0], want[:, 0])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: func.jvp(xp.sin, [V], [T]), r"the primals \[ndarray\]; expected a tuple"),
        (lambda: func.jvp(xp.sin, (), ()), r"the primals \(\); expected a tuple"),
        (lambda: func.jvp(xp.sin, (V,), [T]), r"tangents \[ndarray\] for the primals \(Tensor\)"),
        (lambda: func.jvp(xp.sin, (V,), (T, T)), r"tangents \(ndarray, ndarray\) for"),
        (lambda: func.jvp(lambda d: d["a"], ({"a": V},), ({"b": T},)), "the same containers"),
        (lambda: func.jvp(xp.sin, (V,), (T[:1],)), r"has shape \[1\]; expected \[2\]"),
        (
            lambda: func.jvp(xp.sin, (V,), (1.0,)),
            r"tangent 0 of jvp has shape \[\]; expected \[2\]",
        ),
        (lambda: func.jvp(xp.sin, (V,), (T.astype(int),)), "is int64; expected float64"),
        (lambda: func.jvp(xp.sin, (V,), (T + 1j,)), "is complex128; expected float64"),
        (lambda: func.jvp(xp.sin, (V,), ("T",)), "tangent 0 of jvp is not a tensor but str"),
        (lambda: func.jvp(xp.sin, (V,), (xp.asarray(T, device="meta"),)), "on meta; expected cpu"),
        (lambda: func.jvp(xp.sin, (np.arange(2),), (T,)), "but an argument is int64"),
        (lambda: func.jvp(lambda a: (a, 3), (V,), (T,)), r"lambda> returned \(Tensor, int\)"),
        (lambda: func.jvp(xp.sin, (V,), (T,), has_aux=True), "a pair; sin returned Tensor"),
        (lambda: func.linearize(xp.sin), "no primals"),
        (lambda: func.linearize(xp.sin, V)[1](T, T), r"tangents \(ndarray, ndarray\) for"),
        (lambda: func.linearize(xp.sin, V)[1](T.astype("f4")), "is float32; expected float64"),
        (lambda: func.jacfwd(xp.sin)(V + 1j), "argument 0 of sin is complex128"),
        (lambda: func.jacfwd(lambda a: a * 1j)(V), "result 0 of <lambda> is complex128"),
        (lambda: func.jacrev(xp.sin)(V + 1j), "jacrev requires real functions; argument 0"),
        (lambda: func.jacrev(lambda a: a * 1j)(V), "result 0 of <lambda> is complex128"),
        (lambda: func.jacfwd(xp.sin, argnums=1)(V), "called with 1 positional"),
        (lambda: func.jacfwd(xp.sin, randomness="some")(V), "randomness='some'"),
        (lambda: func.jacfwd(lambda a: 3)(V), "lambda> returned int"),
        (lambda: func.jacfwd(xp.sin, chunk_size=0)(V), "jacfwd was given chunk_size=0"),
    ],
)
def test_invalid_jvp_arguments_raise_argument_error(call, reason):
    with pytest.raises(ArgumentError, match=reason):
        call()
