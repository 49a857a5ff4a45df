"""``func.jacfwd`` and ``hessian``: forward mode along each of the arguments' elements."""

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import Tensor, TransformError, func, ops, vmap
from opdispatch import array_api as xp
from tests.unit.close_tensors import close

V = np.array([1.0, 2.0])
T = np.array([1.0, -3.0])


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


def test_a_write_of_something_batched_makes_room_in_tangents():
    def function(a):
        b = xp.zeros(2)
        part = b[:1]
        part[...] = a[1:] * 2
        b[1] = a[0] ** 2
        return b + part

    close(func.jacfwd(function)(V), np.asarray(func.jacrev(function)(V)))


def test_random_numbers():
    def function(a):
        noise = ops.random.rand_like(a)
        return a * noise, noise

    with pytest.raises(TransformError, match="random, and vmap has randomness"):
        func.jacfwd(function)(V)
    jacobian, noise = func.jacfwd(function, has_aux=True, randomness="same")(V)
    close(jacobian, np.diag(np.asarray(noise)))
    jacobian, first = func.jacfwd(function, has_aux=True, randomness="different")(V)
    assert np.asarray(jacobian)[0, 0] == np.asarray(first)[0]
    assert np.asarray(jacobian)[1, 1] != np.asarray(first)[1]
    moved, noise = func.jvp(function, (V,), (T,), has_aux=True)[1:]
    close(moved, T * np.asarray(noise))
