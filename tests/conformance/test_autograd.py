"""Gradients and second derivatives beside PyTorch's, where it is installed.

Random programs of operators that both have: views, in-place writes, reductions, linear algebra and
transforms, of real and complex numbers. And what a call with a registered derivative visits.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import opdispatch
from opdispatch import Library, Tensor, local_dispatch_key_set
from opdispatch import array_api as xp
from opdispatch.autograd import grad

torch = pytest.importorskip("torch")

TOLERANCE = {"float32": 2e-3, "float64": 1e-8, "complex64": 2e-3, "complex128": 1e-8}
PLACES = [2, 0, 2, 1]
# The deviation of equal numbers, and what is orthogonal to itself, are zero but for rounding, and
# their signs and gradients those of the rounding.
UNEQUAL = np.array([[0, 3, 1], [2, 0, 5], [7, 1, 2]], np.float32)
MASK = np.array([[True, False, True], [False, False, True], [True, True, False]])


def _ours_written(x, y):
    x = x * 1
    x[1:, 0] = y[0, 1:]
    part = x[:, 1]
    part[...] = +part * y[0]
    return x


def _theirs_written(x, y):
    x = x * 1
    x[1:, 0] = y[0, 1:]
    x[:, 1].mul_(y[0])
    return x


EYE = np.eye(3)


def ours_positive(x):
    return x @ xp.conj(xp.matrix_transpose(x)) + xp.astype(xp.asarray(EYE), x.dtype)


def theirs_positive(x):
    return x @ x.mH + torch.from_numpy(EYE).to(x.dtype)


# Of matrices of three rows and columns, which stay small, into such matrices.
ANY_OPERATOR = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "subtract": (lambda x, y: x - 2 * y, lambda x, y: x - 2 * y),
    "multiply": (lambda x, y: x * y, lambda x, y: x * y),
    "divide": (lambda x, y: x / (3 + xp.abs(y)), lambda x, y: x / (3 + torch.abs(y))),
    "matmul": (lambda x, y: x @ y / 3, lambda x, y: x @ y / 3),
    "tanh": (lambda x, y: xp.tanh(x * 0.3), lambda x, y: torch.tanh(x * 0.3)),
    "sin": (lambda x, y: xp.sin(x * 0.3), lambda x, y: torch.sin(x * 0.3)),
    "exp": (lambda x, y: xp.exp(x * 0.2), lambda x, y: torch.exp(x * 0.2)),
    "square": (lambda x, y: xp.square(x) / 2, lambda x, y: torch.square(x) / 2),
    "row sums": (lambda x, y: x + xp.sum(x, axis=1), lambda x, y: x + x.sum(1)),
    "mean": (lambda x, y: x - xp.mean(y, axis=0), lambda x, y: x - y.mean(0)),
    "std": (
        lambda x, y: x + xp.std(y + Tensor(UNEQUAL), axis=0, correction=1),
        lambda x, y: x + torch.std(y + torch.from_numpy(UNEQUAL), 0, correction=1),
    ),
    "prod": (lambda x, y: x + xp.prod(y, axis=1), lambda x, y: x + y.prod(1)),
    "cumulative_sum": (
        lambda x, y: xp.cumulative_sum(x, axis=0) / 2,
        lambda x, y: torch.cumsum(x, 0) / 2,
    ),
    "cumulative_prod": (
        lambda x, y: xp.cumulative_prod(x, axis=1),
        lambda x, y: torch.cumprod(x, 1),
    ),
    "diff": (
        lambda x, y: xp.diff(x, axis=0, prepend=y[:1, :]),
        lambda x, y: torch.diff(x, dim=0, prepend=y[:1, :]),
    ),
    "flip": (lambda x, y: xp.flip(x, axis=0) + y, lambda x, y: torch.flip(x, [0]) + y),
    "roll": (
        lambda x, y: xp.roll(x, (1, -1), axis=(0, 1)),
        lambda x, y: torch.roll(x, (1, -1), (0, 1)),
    ),
    "transpose": (lambda x, y: x.mT * y, lambda x, y: x.mT * y),
    "take": (
        lambda x, y: x + xp.sum(xp.take(y, xp.asarray(PLACES), axis=1), axis=1),
        lambda x, y: x + y.index_select(1, torch.tensor(PLACES)).sum(1),
    ),
    "index": (lambda x, y: x + y[PLACES][:3], lambda x, y: x + y[PLACES][:3]),
    "mask": (
        lambda x, y: x + xp.sum(y[xp.asarray(MASK)]),
        lambda x, y: x + y[torch.from_numpy(MASK)].sum(),
    ),
    "where": (
        lambda x, y: xp.where(xp.asarray(MASK), x, y),
        lambda x, y: torch.where(torch.from_numpy(MASK), x, y),
    ),
    "concat": (
        lambda x, y: xp.concat([x, y], axis=1)[:, 2:5],
        lambda x, y: torch.cat([x, y], 1)[:, 2:5],
    ),
    "stack": (lambda x, y: xp.stack([x, y])[1], lambda x, y: torch.stack([x, y])[1]),
    "tile": (lambda x, y: xp.tile(x[:1, :], (3, 1)) * y, lambda x, y: x[:1, :].tile(3, 1) * y),
    "triu": (lambda x, y: xp.triu(x) + y, lambda x, y: torch.triu(x) + y),
    "in place": (_ours_written, _theirs_written),
    "diagonal": (
        lambda x, y: x + xp.linalg.diagonal(y),
        lambda x, y: x + torch.diagonal(y),
    ),
    "trace": (lambda x, y: x * xp.linalg.trace(y), lambda x, y: x * torch.trace(y)),
    "inv": (
        lambda x, y: xp.linalg.inv(ours_positive(x)) @ y,
        lambda x, y: torch.linalg.inv(theirs_positive(x)) @ y,
    ),
    "solve": (
        lambda x, y: xp.linalg.solve(ours_positive(x), y),
        lambda x, y: torch.linalg.solve(theirs_positive(x), y),
    ),
    "det": (
        lambda x, y: y / xp.linalg.det(ours_positive(x)),
        lambda x, y: y / torch.linalg.det(theirs_positive(x)),
    ),
    "slogdet": (
        lambda x, y: y * xp.linalg.slogdet(ours_positive(x)).logabsdet / 9,
        lambda x, y: y * torch.linalg.slogdet(theirs_positive(x)).logabsdet / 9,
    ),
    "cholesky": (
        lambda x, y: xp.linalg.cholesky(ours_positive(x)) / 3,
        lambda x, y: torch.linalg.cholesky(theirs_positive(x)) / 3,
    ),
    "matrix_power": (
        lambda x, y: xp.linalg.matrix_power(x / 3, 3) + y,
        lambda x, y: torch.linalg.matrix_power(x / 3, 3) + y,
    ),
    "vector_norm": (
        lambda x, y: x / (1 + xp.linalg.vector_norm(y, axis=1)),
        lambda x, y: x / (1 + torch.linalg.vector_norm(y, dim=1)),
    ),
    "nuclear norm": (
        lambda x, y: y / (1 + xp.linalg.matrix_norm(x, ord="nuc")),
        lambda x, y: y / (1 + torch.linalg.matrix_norm(x, ord="nuc")),
    ),
    "eigvalsh": (
        lambda x, y: y * xp.linalg.eigvalsh(ours_positive(x)) / 9,
        lambda x, y: y * torch.linalg.eigvalsh(theirs_positive(x)) / 9,
    ),
    "cross": (
        lambda x, y: xp.linalg.cross(x, y + Tensor(UNEQUAL)),
        lambda x, y: torch.linalg.cross(x, y + torch.from_numpy(UNEQUAL)),
    ),
    "tensordot": (
        lambda x, y: xp.tensordot(x, y, axes=((0,), (1,))) / 3,
        lambda x, y: torch.tensordot(x, y, dims=((0,), (1,))) / 3,
    ),
    "vecdot": (
        lambda x, y: x + xp.vecdot(x, y, axis=-1),
        lambda x, y: x + torch.linalg.vecdot(x, y, dim=-1),
    ),
    "rfft": (
        lambda x, y: x * xp.abs(xp.fft.fft(xp.real(y), n=3, norm="ortho")),
        lambda x, y: x * torch.abs(torch.fft.fft(y.real, n=3, norm="ortho")),
    ),
    "irfft": (
        lambda x, y: x * xp.fft.irfft(y * (1 + 0j) if y.dtype.kind == "c" else xp.fft.rfft(y), n=3),
        lambda x, y: x * torch.fft.irfft(y if y.is_complex() else torch.fft.rfft(y), n=3),
    ),
}
REAL_OPERATOR = {
    "sort": (lambda x, y: xp.sort(x, axis=1) * y, lambda x, y: torch.sort(x, 1).values * y),
    "max": (lambda x, y: x + xp.max(y, axis=0), lambda x, y: x + torch.amax(y, 0)),
    "min": (lambda x, y: x + xp.min(y), lambda x, y: x + torch.amin(y)),
    "maximum": (lambda x, y: xp.maximum(x, y), lambda x, y: torch.maximum(x, y)),
    "clip": (lambda x, y: xp.clip(x, -0.5, 1.0) + y, lambda x, y: torch.clip(x, -0.5, 1.0) + y),
    "abs": (lambda x, y: (1 + xp.abs(x)) ** 1.5 + y, lambda x, y: (1 + torch.abs(x)) ** 1.5 + y),
    "hypot": (lambda x, y: xp.hypot(x, y), lambda x, y: torch.hypot(x, y)),
    "atan2": (lambda x, y: xp.atan2(x, y), lambda x, y: torch.atan2(x, y)),
    "logaddexp": (lambda x, y: xp.logaddexp(x, y), lambda x, y: torch.logaddexp(x, y)),
    "remainder": (lambda x, y: xp.remainder(x, 1.7) * y, lambda x, y: torch.remainder(x, 1.7) * y),
}
COMPLEX_OPERATOR = {
    "conj": (lambda x, y: xp.conj(x) * y, lambda x, y: torch.conj(x) * y),
    "parts": (lambda x, y: xp.real(x) * xp.imag(y) + y, lambda x, y: x.real * y.imag + y),
    "abs": (lambda x, y: xp.abs(x) * y, lambda x, y: torch.abs(x) * y),
    "fft": (
        lambda x, y: xp.fft.fftn(x, norm="ortho") + y,
        lambda x, y: torch.fft.fftn(x, norm="ortho") + y,
    ),
    "pow": (lambda x, y: x**2 + y, lambda x, y: x**2 + y),
    "sign": (lambda x, y: xp.sign(x) + y, lambda x, y: torch.sgn(x) + y),
}


@st.composite
def programs(draw, is_complex):
    """Steps, each an operator and the numbers of two values."""
    names = sorted(ANY_OPERATOR) + [
        "+" + name for name in (COMPLEX_OPERATOR if is_complex else REAL_OPERATOR)
    ]
    steps = draw(st.lists(st.sampled_from(names), min_size=1, max_size=6))
    return [
        (name, draw(st.integers(0, place + 1)), draw(st.integers(0, place + 1)))
        for place, name in enumerate(steps)
    ]


def run(steps, leaves, side, special):
    values = list(leaves)
    for name, one, other in steps:
        operator = special[name[1:]] if name.startswith("+") else ANY_OPERATOR[name]
        values.append(operator[side](values[one], values[other]))
    return values[-1]


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_gradients_are_those_of_pytorch(dtype, data, seed):
    random = np.random.default_rng(seed)
    is_complex = dtype.startswith("complex")

    def some():
        values = random.uniform(-1.5, 1.5, (3, 3))
        if is_complex:
            values = values + 1j * random.uniform(-1.5, 1.5, (3, 3))
        return values.astype(dtype)

    steps = data.draw(programs(is_complex))
    with np.errstate(all="ignore"):  # see `check`
        compare(steps, [some(), some()], some(), dtype)


def compare(steps, arrays, weights, dtype):
    is_complex = dtype.startswith("complex")
    special = COMPLEX_OPERATOR if is_complex else REAL_OPERATOR
    ours = [Tensor(each.copy(), requires_grad=True) for each in arrays]
    theirs = [torch.from_numpy(each.copy()).requires_grad_() for each in arrays]
    result, expected = run(steps, ours, 0, special), run(steps, theirs, 1, special)
    if not np.abs(result.array).max() < 1e3:
        return  # beyond what few steps of small numbers are
    check(result, expected, dtype, 1)
    first = grad(result, ours, Tensor(weights), create_graph=True, allow_unused=True)
    wanted = torch.autograd.grad(
        expected, theirs, torch.from_numpy(weights), create_graph=True, allow_unused=True
    )
    check_all(first, wanted, dtype, 10)
    if dtype in ("float32", "complex64"):
        return
    both = [
        (one, other)
        for one, other in zip(first, wanted, strict=True)
        if one is not None and one.requires_grad and other.requires_grad
    ]
    if both:
        second = grad(
            [one for one, _ in both], ours, [Tensor(weights)] * len(both), allow_unused=True
        )
        expected = torch.autograd.grad(
            [other for _, other in both],
            theirs,
            [torch.from_numpy(weights)] * len(both),
            allow_unused=True,
        )
        check_all(second, expected, dtype, 1000)


def check_all(ours, theirs, dtype, factor):
    for one, other in zip(ours, theirs, strict=True):
        # One side may know that a gradient is zero where the other calculates it.
        if one is None or other is None:
            assert one is None or not one.array.any()
            assert other is None or not other.any()
        else:
            check(one, other, dtype, factor)


def check(ours, theirs, dtype, factor):
    theirs = theirs.detach().resolve_conj().numpy()
    if not np.isfinite(theirs).all():
        return  # there is no derivative here, such as that of atan2(0, 0)
    assert (ours.array.shape, ours.array.dtype) == (theirs.shape, theirs.dtype)
    scale = max(1.0, np.abs(theirs).max())
    assert np.abs(ours.array - theirs).max() <= TOLERANCE[dtype] * factor * scale


# -- what calls visit ------------------------------------------------------------------------------


def test_calls_with_a_registered_derivative_visit_what_those_of_pytorch_visit():
    logs = []
    for side in (OurSide, TheirSide):
        log = []
        logs.append(log)
        world = side(log)
        for requires_grad in (False, True):
            for mode in ("plain", "no_grad", "create_graph"):
                log.append((requires_grad, mode))
                world.run(requires_grad, mode)
        world.close()
    assert logs[0] == logs[1]
    assert len(logs[0]) > 20


class Side:
    """An operator that calls another in its kernel, and in its registered derivative."""

    def __init__(self, log):
        self.log = log
        self.library.define("inner(Tensor x) -> Tensor")
        self.library.define("outer(Tensor x) -> Tensor")
        self.library.impl("inner", self.noting("inner", lambda x: x * 2), "CPU")
        self.library.impl("outer", self.noting("outer", lambda x: self.ops.inner(x) + 1), "CPU")
        self.register("inner", self.noting("inner back", lambda ctx, grad: grad * 2))
        self.register("outer", self.noting("outer back", lambda ctx, grad: self.ops.inner(grad)))

    def noting(self, where, function):
        def kernel(*args):
            self.log.append((where, self.is_recording(), *self.excluded()))
            return function(*args)

        return kernel

    def run(self, requires_grad, mode):
        x = self.tensor(requires_grad)
        with self.no_grad() if mode == "no_grad" else self.enable_grad():
            y = self.ops.outer(x)
        self.log.append(("recorded", y.requires_grad))
        if y.requires_grad:
            [first] = self.grad(y, x, self.tensor(False), create_graph=mode == "create_graph")
            self.log.append(("second", first.requires_grad))


class OurSide(Side):
    def __init__(self, log):
        self.library = Library("visits", "DEF")
        self.ops = opdispatch.ops.visits
        self.register = self.library.register_autograd
        self.no_grad, self.enable_grad = opdispatch.no_grad, opdispatch.enable_grad
        self.is_recording = opdispatch.is_grad_enabled
        self.grad = grad
        super().__init__(log)

    def tensor(self, requires_grad):
        return Tensor(np.ones(2), requires_grad=requires_grad)

    def excluded(self):
        _, excluded = local_dispatch_key_set()
        names = {str(key) for key in excluded}
        return (
            "AutogradCPU" in names or "AutogradFunctionality" in names,
            "ADInplaceOrView" in names,
        )

    def close(self):
        self.library.close()


class TheirSide(Side):
    def __init__(self, log):
        self.library = torch.library.Library("visits", "DEF")
        self.ops = torch.ops.visits
        self.no_grad, self.enable_grad = torch.no_grad, torch.enable_grad
        self.is_recording = torch.is_grad_enabled
        self.grad = torch.autograd.grad
        super().__init__(log)

    def register(self, name, backward):
        torch.library.register_autograd(f"visits::{name}", backward, lib=self.library)

    def tensor(self, requires_grad):
        return torch.ones(2, dtype=torch.float64, requires_grad=requires_grad)

    def excluded(self):
        excluded = torch._C._dispatch_tls_local_exclude_set()
        return (
            excluded.has(torch._C.DispatchKey.AutogradCPU),
            excluded.has(torch._C.DispatchKey.ADInplaceOrView),
        )

    def close(self):
        self.library._destroy()
