"""``func.jvp``, ``linearize`` and ``jacfwd``: derivatives along directions."""

from collections.abc import Sequence

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import (
    ArgumentError,
    AutogradError,
    Library,
    RegistrationError,
    Tensor,
    TransformError,
    custom_op,
    enable_grad,
    func,
    functionalize,
    inference_mode,
    no_grad,
    ops,
    register_jvp,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.autograd import grad as gradients_of
from tests.unit.derivative_calls import CALLS, Call

V = np.array([1.0, 2.0])
T = np.array([1.0, -3.0])
EYE = np.eye(2)


def close(got, want):
    assert tuple(got.shape) == np.shape(want)
    with no_grad():
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-7, atol=1e-9)


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


def test_grad_mode_is_about_the_way_back():
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
    with pytest.raises(TransformError, match="which the function that jvp transforms has"):
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


def test_linearize_keeps_values_that_are_written_to_later():
    def function(a):
        b = a * 2
        part = b[:1]
        c = xp.sin(b) + xp.sum(part * part)
        b[...] = 0.0
        part += 1.0
        return c, b

    value, forward = func.linearize(function, V)
    want = func.jvp(function, (V,), (T,))
    for got, other in zip((*value, *forward(T)), (*want[0], *want[1]), strict=True):
        close(got, np.asarray(other))


def test_a_write_of_something_batched_makes_room_in_tangents():
    def function(a):
        b = xp.zeros(2)
        part = b[:1]
        part[...] = a[1:] * 2
        b[1] = a[0] ** 2
        return b + part

    close(func.jacfwd(function)(V), np.asarray(func.jacrev(function)(V)))


INF, NAN = np.inf, np.nan
SPECIAL = {
    "a power of zero": (lambda x: x ** xp.asarray([0.0, 1.0, 2.0]), [0.0, 0.0, 0.0], [0, 1, 0]),
    "zero to a power": (lambda x: 0.0**x, [1.0, 0.0, 2.0], [0, 0, 0]),
    "the norm of zeros": (xp.linalg.vector_norm, [0.0, 0.0], [0, 0]),
    "a norm of zeros": (lambda x: xp.linalg.vector_norm(x, ord=3), [0.0, 0.0], [0, 0]),
    "a product with an infinity": (xp.prod, [INF, 1.0, 2.0], [2, INF, INF]),
    "a product with zeros": (xp.prod, [0.0, 1.0, 2.0], [2, 0, 0]),
    "a sign of zero": (lambda x: xp.copysign(x, -1.0), [0.0, 2.0, -INF], [0, -1, 1]),
    "a deviation of what is equal": (xp.std, [1.0, 1.0, 1.0], [0, 0, 0]),
    "the larger of two that are equal": (lambda x: xp.maximum(x, 1.0), [1.0, 0.0], [0.5, 0]),
    "the largest of several": (xp.max, [1.0, 1.0, 0.0], [0.5, 0.5, 0]),
}


@pytest.mark.parametrize("what", SPECIAL)
def test_tangents_at_special_points(what):
    """Column by column, and beside backward mode."""
    function, at, want = SPECIAL[what]
    at, eye = np.array(at), np.eye(len(at))
    with np.errstate(all="ignore"):
        columns = [np.sum(func.jvp(function, (at,), (each,))[1]) for each in eye]
        gradient = func.grad(lambda x: xp.sum(function(x)))(at)
    np.testing.assert_array_equal(columns, want)
    np.testing.assert_array_equal(gradient, want)


def test_linearize():
    calls = []

    def function(a, b):
        calls.append(1)
        return {"product": a["x"] * b, "first": a["x"][0]}

    value, forward = func.linearize(function, {"x": Tensor(V)}, Tensor(2 * V))
    close(value["product"], 2 * V * V)
    for scale in (1.0, 2.0):
        moved = forward({"x": Tensor(scale * T)}, Tensor(V))
        close(moved["product"], scale * T * 2 * V + V * V)
        close(moved["first"], scale * T[0])
    batch = vmap(forward)({"x": Tensor(EYE)}, Tensor(0 * EYE))
    close(batch["product"], np.diag(2 * V))
    assert calls == [1]
    leaf = Tensor(V.copy(), requires_grad=True)
    forward = func.linearize(lambda a: a**3, leaf)[1]
    close(gradients_of(xp.sum(forward(Tensor(T))), leaf)[0], 6 * V * T)
    close(func.grad(lambda t: xp.sum(forward(t)))(T), 3 * V**2)


def test_jacobians():
    def function(a, b):
        return {"product": xp.linalg.outer(a, b["x"]), "sum": xp.sum(b["x"]) * b["y"]}, (a, "seen")

    arguments = (Tensor(V), {"x": Tensor(np.array([1.0, 2.0, 3.0])), "y": Tensor(np.array(2.0))})
    forward, aux = func.jacfwd(function, argnums=(0, -1), has_aux=True)(*arguments)
    back, _ = func.jacrev(function, argnums=(0, -1), has_aux=True)(*arguments)
    close(aux[0], V)
    assert aux[1] == "seen"
    for name in ("product", "sum"):
        close(forward[name][0], np.asarray(back[name][0]))
        for key in ("x", "y"):
            close(forward[name][1][key], np.asarray(back[name][1][key]))
    close(func.jacfwd(lambda a, *, power: a**power)(V, power=2), np.diag(2 * V))
    close(func.jacfwd(lambda a: xp.sum(a) * 2)(3.0), 2.0)
    assert func.jacfwd(lambda a: a[:0])(V).shape == (0, 2)
    assert func.jacfwd(xp.exp)(V[:0]).shape == (0, 0)


def test_jacfwd_in_chunks_gives_the_same_jacobian():
    def function(a):
        return xp.tanh(a) * xp.sum(a), a

    at = np.arange(5.0)
    whole, _ = func.jacfwd(function, has_aux=True)(at)
    parts, aux = func.jacfwd(function, has_aux=True, chunk_size=2)(at)
    close(parts, np.asarray(whole))
    close(aux, at)


def test_second_derivatives():
    def function(a):
        return xp.sum(xp.exp(a[0] * a) * a[1])

    want = np.asarray(func.hessian(function)(V))
    close(func.jacfwd(func.jacrev(function))(V), want)
    close(func.jacfwd(func.jacfwd(function))(V), want)
    close(func.jacrev(func.jacfwd(function))(V), want)
    close(func.jvp(func.grad(function), (V,), (T,))[1], want @ T)
    batch = np.stack([V, T])
    close(vmap(func.jacfwd(func.grad(function)))(batch)[0], want)


def test_a_batch_of_directions_and_of_places():
    def function(a):
        return xp.tanh(a * xp.sum(a))

    want = np.asarray(func.jacrev(function)(V))
    close(vmap(lambda t: func.jvp(function, (Tensor(V),), (t,))[1])(EYE), want.T)
    both = vmap(lambda a, t: func.jvp(function, (a,), (t,))[1])(np.stack([V, T]), EYE)
    close(both[0], want[:, 0])
    close(func.jvp(vmap(function), (np.stack([V, T]),), (EYE,))[1][0], want[:, 0])


def test_random_numbers():
    def function(a):
        noise = ops.random.rand_like(a)
        return a * noise, noise

    with pytest.raises(TransformError, match="random, and vmap was not told"):
        func.jacfwd(function)(V)
    jacobian, noise = func.jacfwd(function, has_aux=True, randomness="same")(V)
    close(jacobian, np.diag(np.asarray(noise)))
    jacobian, first = func.jacfwd(function, has_aux=True, randomness="different")(V)
    assert np.asarray(jacobian)[0, 0] == np.asarray(first)[0]
    assert np.asarray(jacobian)[1, 1] != np.asarray(first)[1]
    moved, noise = func.jvp(function, (V,), (T,), has_aux=True)[1:]
    close(moved, T * np.asarray(noise))


def test_operators_of_ones_own():
    """What its derivative gives is gone back through, too."""
    with Library("forward", "DEF") as lib:
        lib.define("cube(Tensor x) -> Tensor")
        lib.impl("cube", lambda x: Tensor(x.array**3), "CPU")
        lib.define("bare(Tensor x) -> Tensor")
        lib.impl("bare", lambda x: Tensor(x.array**3), "CPU")
        lib.define("once(Tensor x) -> Tensor")
        lib.impl("once", lambda x: Tensor(x.array**3), "CPU")

        def save(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        lib.register_autograd(
            "cube", lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2, setup_context=save
        )
        lib.register_autograd("once", lambda ctx, grad: Tensor(np.asarray(grad)))
        close(func.jvp(ops.forward.cube, (V,), (T,))[1], 3 * V**2 * T)
        with pytest.raises(AutogradError, match=r"no forward-mode derivative.*register_jvp"):
            func.jvp(ops.forward.bare, (V,), (T,))
        with pytest.raises(TransformError, match="would be lost to the transform"):
            func.jvp(ops.forward.once, (V,), (T,))


def _keep(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs)
    ctx.scale = keyword_only_inputs["scale"]


def test_register_jvp_serves_every_nesting_of_transforms():
    with Library("forward", "DEF") as lib:
        lib.define("cube(Tensor x, *, float scale=1.0) -> Tensor")
        lib.impl("cube", lambda x, *, scale=1.0: Tensor(scale * x.array**3), "CPU")
        lib.register_autograd(
            "cube", lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2, setup_context=_keep
        )
        seen = []

        @register_jvp("forward::cube", setup_context=_keep, lib=lib)
        def cube_jvp(ctx, x_t):
            seen.append(x_t)
            return 3 * ctx.scale * ctx.saved_tensors[0] ** 2 * x_t

        def moved(x):
            return func.jvp(cube, (x,), (Tensor(T),))[1]

        cube = ops.forward.cube
        close(func.jvp(lambda x: cube(x, scale=2.0), (V,), (T,))[1], 6 * V**2 * T)
        assert len(seen) == 1
        close(func.jacfwd(cube)(V), np.diag(3 * V**2))
        close(func.linearize(cube, V)[1](T), 3 * V**2 * T)
        close(func.hessian(lambda x: xp.sum(cube(x)))(V), np.diag(6 * V))
        close(func.grad(lambda x: xp.sum(moved(x)))(V), 6 * V * T)
        close(func.jvp(moved, (V,), (T,))[1], 6 * V * T**2)
        batch = np.stack([V, T])
        lib.impl("cube", lambda x, *, scale=1.0: scale * x * x * x, "FuncTorchBatchedDecomposition")
        close(vmap(moved)(batch), 3 * batch**2 * T)


def test_register_jvp_is_undone_with_its_library():
    with Library("forward", "DEF") as lib:
        lib.define("cube(Tensor x) -> Tensor")
        lib.impl("cube", lambda x: Tensor(x.array**3), "CPU")
        with Library("forward", "FRAGMENT") as other:
            register_jvp("forward::cube", lambda ctx, x_t: x_t, lib=other)
            close(func.jvp(ops.forward.cube, (V,), (T,))[1], T)
        with pytest.raises(AutogradError, match="register_jvp"):
            func.jvp(ops.forward.cube, (V,), (T,))


def test_register_jvp_of_a_custom_op_gets_tangents_as_arguments_are():
    given = []

    @custom_op("forward::mixed", mutates_args=())
    def mixed(parts: Sequence[Tensor], n: int, place: Tensor) -> tuple[Tensor, Tensor]:
        return Tensor(parts[0].array * n), Tensor(parts[1].array + place.array)

    def mixed_jvp(ctx, parts_t, n_t, place_t):
        given.append((parts_t, n_t, place_t))
        return parts_t[0] * 3, None

    mixed.register_jvp(mixed_jvp)
    place = Tensor(np.array([1, 2]))
    moved = func.jvp(lambda x: mixed([x, Tensor(V)], 3, place), (V,), (T,))[1]
    close(moved[0], 3 * T)
    close(moved[1], 0 * T)
    [(parts_t, n_t, place_t)] = given
    close(parts_t[1], 0 * T)
    assert n_t is None
    assert place_t is None

    def not_materialized(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    mixed.register_jvp(mixed_jvp, setup_context=not_materialized)
    func.jvp(lambda x: mixed([x, Tensor(V)], 3, place), (V,), (T,))
    assert given[1][0][1] is None


@pytest.mark.parametrize(
    ("jvp", "reason"),
    [
        (lambda ctx, x_t: (x_t, x_t), "2 tangents; expected 1, one for each"),
        (lambda ctx, x_t: 3.0, "float; expected a Tensor or None"),
        (lambda ctx, x_t: x_t[:1], r"a tangent of shape \[1\] .* for a result of shape \[2\]"),
        (lambda ctx, x_t: xp.astype(x_t, xp.float32), "a tangent .* dtype float32 for a result"),
    ],
)
def test_register_jvp_refuses_what_is_no_tangent(jvp, reason):
    with Library("forward", "DEF") as lib:
        lib.define("cube(Tensor x) -> Tensor")
        lib.impl("cube", lambda x: Tensor(x.array**3), "CPU")
        lib.register_jvp("cube", jvp)
        with pytest.raises(AutogradError, match=f"the jvp of forward::cube returned {reason}"):
            func.jvp(ops.forward.cube, (V,), (T,))


def test_register_jvp_refuses_operators_that_write_or_give_views():
    with Library("forward", "DEF") as lib:
        lib.define("write(Tensor(a!) x) -> Tensor(a!)")
        lib.define("view(Tensor(a) x) -> Tensor(a)")
        lib.define("named(Tensor x, *, Tensor y) -> Tensor")
        lib.define("cube(Tensor x) -> Tensor")
        for name, reason in (
            ("write", "it writes to its arguments"),
            ("view", "it gives views"),
            ("named", "its keyword-only argument 'y' is a tensor"),
        ):
            with pytest.raises(RegistrationError, match=reason):
                lib.register_jvp(name, print)
        with pytest.raises(RegistrationError, match="jvp of forward::cube is of type int"):
            lib.register_jvp("cube", 3)


def test_operators_with_a_backward_formula_alone_go_back_twice_for_that_call():
    with Library("forward", "DEF") as lib:
        lib.define("both(Tensor[] parts) -> (Tensor, Tensor)")
        lib.impl("both", lambda p: (Tensor(p[0].array * p[1].array), Tensor(+p[0].array)), "CPU")

        def backward(ctx, one, other):
            first, second = ctx.saved_tensors
            return ([one * second + other, one * first],)

        def keep(ctx, inputs, output):
            ctx.save_for_backward(*inputs[0])

        lib.register_autograd("both", backward, setup_context=keep)
        product, first = func.jvp(lambda x: ops.forward.both([x, Tensor(V)]), (V,), (T,))[1]
        close(product, T * V)
        close(first, T)


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
        (lambda: func.jvp(xp.sin, (V,), ("T",)), "tangent 0 of jvp is no tensor, but str"),
        (lambda: func.jvp(xp.sin, (V,), (xp.asarray(T, device="meta"),)), "on meta; expected cpu"),
        (lambda: func.jvp(xp.sin, (np.arange(2),), (T,)), "and an argument is int64"),
        (lambda: func.jvp(lambda a: (a, 3), (V,), (T,)), r"lambda> returned \(Tensor, int\)"),
        (lambda: func.jvp(xp.sin, (V,), (T,), has_aux=True), "a pair, and sin returned Tensor"),
        (lambda: func.linearize(xp.sin), "no primals"),
        (lambda: func.linearize(xp.sin, V)[1](T, T), r"tangents \(ndarray, ndarray\) for"),
        (lambda: func.linearize(xp.sin, V)[1](T.astype("f4")), "is float32; expected float64"),
        (lambda: func.jacfwd(xp.sin)(V + 1j), "argument 0 of sin is complex128"),
        (lambda: func.jacfwd(lambda a: a * 1j)(V), "result 0 of <lambda> is complex128"),
        (lambda: func.jacrev(xp.sin)(V + 1j), "jacrev is of real functions, and argument 0"),
        (lambda: func.jacrev(lambda a: a * 1j)(V), "result 0 of <lambda> is complex128"),
        (lambda: func.jacfwd(xp.sin, argnums=1)(V), "called with 1 positional"),
        (lambda: func.jacfwd(xp.sin, randomness="some")(V), "randomness='some'"),
        (lambda: func.jacfwd(lambda a: 3)(V), "lambda> returned int"),
        (lambda: func.jacfwd(xp.sin, chunk_size=0)(V), "jacfwd was given chunk_size=0"),
    ],
)
def test_what_does_not_fit_is_refused(call, reason):
    with pytest.raises(ArgumentError, match=reason):
        call()


def inner_product(ones, others):
    """Of real and imaginary parts."""
    return sum(np.sum((np.asarray(a) * np.conj(b)).real) for a, b in zip(ones, others, strict=True))


def forward_beside_backward(call, rng):
    """<J v, u> = <v, J^H u>, of an operator's differentiable arguments and results."""
    function, leaves = call.checked()
    arrays = [np.array(leaf.array) for leaf in leaves]
    places = [n for n, each in enumerate(arrays) if each.dtype.kind in "fc"]

    def of_places(*given):
        every = [Tensor(each) for each in arrays]
        for place, each in zip(places, given, strict=True):
            every[place] = +each  # a copy may be written to
        result = function(*every)
        found = list(result) if isinstance(result, list | tuple) else [result]
        return [each for each in found if each.dtype.kind in "fc"]

    primals = [Tensor(arrays[place]) for place in places]
    if not primals or not of_places(*primals):
        return 0

    def direction(like):
        parts = rng.normal(size=(2, *like.shape))
        return (parts[0] + (1j * parts[1] if like.dtype.kind == "c" else 0)).astype(like.dtype)

    results, forward = func.linearize(of_places, *primals)
    _, back = func.vjp(of_places, *primals)
    tangents, cotangents = list(map(direction, primals)), list(map(direction, results))
    one = inner_product(forward(*tangents), cotangents)
    gradients = back([Tensor(each) for each in cotangents])
    np.testing.assert_allclose(one, inner_product(tangents, gradients), rtol=1e-6, atol=1e-9)
    return 1


def test_every_derivative_forward():
    chosen = {}
    for call in CALLS:
        kinds = "".join(sorted({each.dtype.kind for each in call.arrays} & set("fc")))
        chosen.setdefault((call.operator, kinds), call)
    rng = np.random.default_rng(0)
    compared = 0
    for call in chosen.values():
        try:
            compared += forward_beside_backward(call, rng)
        except Exception as error:
            error.add_note(repr(call))
            raise
    assert compared > 100


@pytest.mark.parametrize(
    ("operator", "shape", "options"),
    [
        *((name, (3, 3), {}) for name in ("eigh", "eig", "cholesky")),
        *(("svd", shape, {"full_matrices": False}) for shape in ((3, 3), (2, 3), (3, 2))),
        *(("qr", shape, {}) for shape in ((3, 3), (2, 3), (2, 4, 3))),
    ],
)
def test_decompositions_of_complex_matrices_forward(operator, shape, options):
    """Also in what does not matter: how vectors that are not unique turn."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    if operator in ("eigh", "eig", "cholesky"):
        x = x @ x.conj().T + np.eye(3)
    assert forward_beside_backward(Call(f"linalg_{operator}", x, **options), rng) == 1


def test_second_derivatives_of_powers_exist_at_zero():
    exponents = np.array([0.0, 1.0, 2.0, 3.0])

    def function(x):
        return x**exponents

    zeros, ones = np.zeros(4), np.ones(4)
    for first in (
        lambda x: func.jvp(function, (x,), (Tensor(ones),))[1],
        func.grad(lambda x: xp.sum(function(x))),
    ):
        close(func.jvp(first, (zeros,), (ones,))[1], [0, 0, 2, 0])
        close(func.grad(lambda x, first=first: xp.sum(first(x)))(zeros), [0, 0, 2, 0])


def test_backward_passes_that_record_views_of_their_own_have_tangents():
    """A write to a view of what was recorded: going back, its place is found by going back."""

    def function(a):
        b = a * 1.0
        part = b[:1]
        part += a[1:] ** 2
        return xp.sum(b**3)

    want = np.asarray(func.jacrev(func.jacrev(function))(V))
    close(func.hessian(function)(V), want)
    close(func.jvp(func.grad(function), (V,), (T,))[1], want @ T)
