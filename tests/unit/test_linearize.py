"""``func.linearize``: a derivative at one place, for many directions."""

import numpy as np

from opdispatch import Tensor, func, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import grad as gradients_of
from tests.unit.close_tensors import close

V = np.array([1.0, 2.0])
T = np.array([1.0, -3.0])
EYE = np.eye(2)


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
