"""``register_jvp``, and forward mode of operators that have none."""

from collections.abc import Sequence

import numpy as np
import pytest

from opdispatch import (
    AutogradError,
    Library,
    RegistrationError,
    Tensor,
    TransformError,
    custom_op,
    func,
    ops,
    register_jvp,
    vmap,
)
from opdispatch import array_api as xp
from tests.unit.close_tensors import close

V = np.array([1.0, 2.0])
T = np.array([1.0, -3.0])


def test_operators_of_ones_own():
    """Run the backward pass through the derivative's result, too."""
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
        with pytest.raises(TransformError, match="the transform would not see"):
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
