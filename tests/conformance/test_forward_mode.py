"""Forward mode beside that of ``torch.func``, where PyTorch is installed.

Programs drawn with fixed seeds, of operators that both have, under nestings of all transforms; at
random places, and at special ones: zeros, ties, infinities, NaN, equal eigenvalues and matrices
without full rank. Where PyTorch's derivative is NaN, it may exist here.
"""

import numpy as np
import pytest

from opdispatch import Tensor, func, vmap
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

# torch.func.jvp compiles rules of its own when it first meets their operator.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, about infinities and NaN
]
INF, NAN = np.inf, np.nan


def written(x, y, clone):
    """Write to what was computed, and through a view of it."""
    z = clone(x)
    part = z[1]
    part += y[0]
    z *= 2
    z[:, 0] = y[:, 1] ** 2
    return z * y + part


def of_first(function):
    return lambda x, y: function(x)


# Of two matrices of three rows and columns, into such a matrix: ours, and PyTorch's.
OPERATORS = {
    **{
        name: (of_first(getattr(xp, name)), of_first(getattr(torch, theirs)))
        for name, theirs in {
            **{same: same for same in ("cos", "exp", "expm1", "log", "log1p", "sqrt", "square")},
            **{same: same for same in ("atan", "tanh", "sin", "floor", "reciprocal", "asinh")},
            "negative": "neg",
        }.items()
    },
    **{
        name: (getattr(xp, name), getattr(torch, theirs))
        for name, theirs in {
            **{same: same for same in ("hypot", "logaddexp", "maximum", "minimum", "pow")},
            "add": "add",
            "subtract": "sub",
            "multiply": "mul",
            "divide": "div",
            "remainder": "remainder",
            "copysign": "copysign",
        }.items()
    },
    "power": (lambda x, y: x**2.5, lambda x, y: x**2.5),
    "of zero": (lambda x, y: 0.0**x, lambda x, y: 0.0**x),
    "clip": (lambda x, y: xp.clip(x, -1.0, 1.0), lambda x, y: torch.clamp(x, -1, 1)),
    "where": (lambda x, y: xp.where(x > y, x, -y), lambda x, y: torch.where(x > y, x, -y)),
    "max": (lambda x, y: y * xp.max(x), lambda x, y: y * torch.amax(x)),
    "prod": (lambda x, y: y * xp.prod(x, axis=0), lambda x, y: y * torch.prod(x, 0)),
    "mean": (lambda x, y: y * xp.mean(x), lambda x, y: y * torch.mean(x)),
    "std": (lambda x, y: y * xp.std(x), lambda x, y: y * torch.std(x, correction=0)),
    "norm": (
        lambda x, y: y * xp.linalg.vector_norm(x),
        lambda x, y: y * torch.linalg.vector_norm(x),
    ),
    "norm 3": (
        lambda x, y: y * xp.linalg.vector_norm(x, axis=1, ord=3),
        lambda x, y: y * torch.linalg.vector_norm(x, dim=1, ord=3),
    ),
    "sort": (
        lambda x, y: xp.sort(x, axis=-1) * y,
        lambda x, y: torch.sort(x, dim=-1, stable=True).values * y,
    ),
    "matmul": (lambda x, y: x @ y / 3, lambda x, y: x @ y / 3),
    "transpose": (lambda x, y: x.mT * y, lambda x, y: x.mT * y),
    "roll": (lambda x, y: xp.roll(x, 1, axis=0) * y, lambda x, y: torch.roll(x, 1, 0) * y),
    "concat": (
        lambda x, y: xp.concat([x[1:], y[:1]]),
        lambda x, y: torch.cat([x[1:], y[:1]]),
    ),
    "index": (lambda x, y: x[[2, 0, 2], :] * y[0], lambda x, y: x[[2, 0, 2], :] * y[0]),
    "fft": (
        lambda x, y: xp.real(xp.fft.fft(x) * xp.fft.ifft(y)),
        lambda x, y: torch.real(torch.fft.fft(x) * torch.fft.ifft(y)),
    ),
    "written": (
        lambda x, y: written(x, y, xp.positive),
        lambda x, y: written(x, y, torch.clone),
    ),
    "inv": (
        lambda x, y: xp.linalg.inv(xp.tanh(x) + 3 * xp.eye(3)) * y,
        lambda x, y: torch.linalg.inv(torch.tanh(x) + 3 * torch.eye(3, dtype=x.dtype)) * y,
    ),
    "eigvalsh": (
        lambda x, y: xp.linalg.eigvalsh(xp.tanh(x + x.mT)) * y,
        lambda x, y: torch.linalg.eigvalsh(torch.tanh(x + x.mT)) * y,
    ),
}
SPECIAL = [
    np.zeros((3, 3)),
    np.eye(3),
    np.diag([1.0, 1.0, 2.0]),
    np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]]),
    np.array([[0.0, 1, -1], [2, 0.5, -0.5], [1, 3, 1]]),
    np.array([[INF, 1, 2], [1, -1, 0], [0, 2, 1]]),
    np.array([[1, NAN, 2], [1, -1, 0], [0, 2, 1]]),
]
KINDS = ("grad", "jvp", "vjp", "jacfwd", "jacrev", "hessian", "linearize", "vmap", "vmap")
NO_ORDER = {"eigvalsh"}  # of which PyTorch refuses matrices that are not finite, and so do we


def program(steps, side):
    def function(x, y):
        for name, exchanged in steps:
            step = OPERATORS[name][side]
            x, y = (y, step(y, x)) if exchanged else (step(x, y), y)
        return x + y

    return function


def transformed(kind, argnums, function, side):
    """Return another function of two matrices, or batches of them."""
    namespace, total = (func, torch.func)[side], (xp.sum, torch.sum)[side]

    def scalar(x, y):
        return total(function(x, y))

    def along(transform):
        return lambda x, y: transform(function, (x, y), (x * 0 + 1, y * 0 + 2))[1]

    if kind == "vmap":
        return (vmap, torch.func.vmap)[side](function)
    if kind in ("grad", "hessian"):
        return getattr(namespace, kind)(scalar, argnums=argnums)
    if kind in ("jacfwd", "jacrev"):
        return getattr(namespace, kind)(function, argnums=argnums)
    if kind == "vjp":

        def back(x, y):
            result, pull = namespace.vjp(function, x, y)
            return pull(result * 0 + 1)[argnums]

        return back
    if kind == "linearize" and side == 0:  # PyTorch's does not nest
        return lambda x, y: func.linearize(function, x, y)[1](x * 0 + 1, y * 0 + 2)
    return along(namespace.jvp)


def drawn(rng, is_special):
    """Draw a program, its transforms, and two matrices with a batch for each vmap."""
    steps = [
        (str(rng.choice(sorted(OPERATORS))), bool(rng.integers(2)))
        for _ in range(rng.integers(1, 4))
    ]
    transforms, order, sizes = [], 0, [2, 4]
    for _ in range(rng.integers(1, 4)):
        kind = str(rng.choice(KINDS))
        order += {"vmap": 0, "hessian": 2}.get(kind, 1)
        if order <= 2 and (kind != "vmap" or sum(k == "vmap" for k, _ in transforms) < 2):
            transforms.append((kind, int(rng.integers(2))))
    batch = sizes[: sum(kind == "vmap" for kind, _ in transforms)]
    arrays = []
    for _ in range(2):
        samples = rng.uniform(-1, 1, (int(np.prod(batch)), 3, 3))
        for n in range(len(samples)):
            if is_special and rng.integers(2):
                samples[n] = SPECIAL[rng.integers(len(SPECIAL))]
        arrays.append(samples.reshape(*batch, 3, 3))
    return steps, transforms, arrays


def compare(got, want):
    got, want = np.asarray(got), want.numpy(force=True)
    assert got.shape == want.shape
    exists = ~np.isnan(want)
    np.testing.assert_allclose(got[exists], want[exists], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_nested_transforms_agree_with_torch_at_ordinary_and_special_points(seed, is_special):
    rng = np.random.default_rng(seed + 100 * is_special)
    compared = 0
    for _ in range(12):
        steps, transforms, arrays = drawn(rng, is_special)
        if not all(np.isfinite(each).all() for each in arrays):
            steps = [step for step in steps if step[0] not in NO_ORDER]
        functions = [program(steps, side) for side in (0, 1)]
        for kind, argnums in transforms:
            functions = [transformed(kind, argnums, f, side) for side, f in enumerate(functions)]
        try:
            want = functions[1](*map(torch.tensor, arrays))
        except (RuntimeError, NotImplementedError):
            continue  # there are nestings that PyTorch has no formulas for
        try:
            compare(functions[0](*map(Tensor, arrays)), want)
        except Exception as error:
            error.add_note(f"{steps} under {transforms} at {arrays}")
            raise
        compared += 1
    assert compared >= 8
