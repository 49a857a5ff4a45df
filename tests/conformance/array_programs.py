"""Random programs of array operators, written once for opdispatch and for PyTorch.

A step takes a namespace and two square matrices, and gives such a matrix. Steps with decompositions
give what does not depend on the phases of vectors, on which the two libraries need not agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_sides import SIDES

Step = Callable[[Any, Any, Any], Any]


def _same(*names: str) -> dict[str, Step]:
    return {name: lambda xp, x, y, name=name: getattr(xp, name)(x) for name in names}


def _of_both(*names: str) -> dict[str, Step]:
    return {name: lambda xp, x, y, name=name: getattr(xp, name)(x, y) for name in names}


def _eye(xp: Any, x: Any) -> Any:
    return xp.eye(x.shape[-1], dtype=x.dtype)


def _regular(xp: Any, x: Any) -> Any:
    return xp.tanh(x) + 3 * _eye(xp, x)


def _is_larger(xp: Any, x: Any, y: Any) -> Any:
    if "complex" not in str(x.dtype):
        return x > y
    # The parts of complex numbers that are not finite are what a library makes them.
    return xp.isfinite(x) & xp.isfinite(y) & (xp.real(x) > xp.real(y))


def _adjoint(xp: Any, x: Any) -> Any:
    return xp.conj(xp.matrix_transpose(x))


def _hermitian(xp: Any, x: Any) -> Any:
    return x + _adjoint(xp, x)


def _of_eigenvalues(xp: Any, x: Any, y: Any) -> Any:
    values, vectors = xp.linalg.eigh(_hermitian(xp, x))
    return (vectors * xp.exp(-values * values)) @ _adjoint(xp, vectors) * y


def _of_singular_values(xp: Any, x: Any, y: Any) -> Any:
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    return (u * xp.tanh(s)) @ vh * y


def _projected(xp: Any, x: Any, y: Any) -> Any:
    q, r = xp.linalg.qr(x)
    return q @ (_adjoint(xp, q) @ y) + _adjoint(xp, r) @ r


def _projected_tall(xp: Any, x: Any, y: Any) -> Any:
    q, _ = xp.linalg.qr(xp.concat([x, _regular(xp, y)]))
    return (q @ _adjoint(xp, q))[: x.shape[-1], : x.shape[-1]]


def _written(xp: Any, x: Any, y: Any) -> Any:
    """Write to what was computed, and through a view of it."""
    z = xp.copy(x)
    part = z[1]
    part += y[0]
    z *= 2
    z[:, 0] = y[:, 1] * y[:, 1]
    return z * y + part


def _written_exp(xp: Any, x: Any, y: Any) -> Any:
    z = xp.exp(x)
    z += 1
    z *= y
    z -= x
    return z


def _written_diagonally(xp: Any, x: Any, y: Any) -> Any:
    z = xp.sin(x)
    rows = xp.permute_dims(z, (1, 0))
    rows[0] = y[:, 0] * 2
    z[1:, :2] *= y[1:, :2]
    rows /= 3
    return z + rows


def _scattered(xp: Any, x: Any, y: Any) -> Any:
    z = x * y
    z[[2, 0], :] = y[:2] * x[1:]
    z[..., 1] = 0.5
    return z


def _overwritten(xp: Any, x: Any, y: Any) -> Any:
    z = xp.tanh(x)
    z[...] = y * y
    z[0, 1:] += x[0, 1:]
    return z


EVERYWHERE: dict[str, Step] = {
    **_same("cos", "sin", "exp", "expm1", "sqrt", "square", "atan", "tanh", "asinh", "reciprocal"),
    **_same("log", "log1p", "tan", "sinh", "cosh", "negative", "abs", "sign", "acos", "asin"),
    **_same("atanh", "acosh", "log2", "log10"),
    **_of_both("add", "subtract", "multiply", "divide", "pow"),
    "power 0": lambda xp, x, y: x**0 * y,
    "power 1": lambda xp, x, y: x**1,
    "power 2": lambda xp, x, y: x**2,
    "power 3": lambda xp, x, y: x**3,
    "power -1": lambda xp, x, y: x**-1,
    "power 2.5": lambda xp, x, y: x**2.5,
    "of zero": lambda xp, x, y: 0.0**x,
    "of two": lambda xp, x, y: 2.0**x,
    "by number": lambda xp, x, y: 1.5 / (x + 3) - x / 4,
    "sum": lambda xp, x, y: y * xp.sum(x),
    "sum of rows": lambda xp, x, y: y * xp.sum(x, axis=-1, keepdims=True),
    "mean": lambda xp, x, y: y - xp.mean(x, axis=0),
    "prod": lambda xp, x, y: y * xp.prod(x, axis=0),
    "cumulative_sum": lambda xp, x, y: xp.cumulative_sum(x + 0.0, axis=1) * y,
    "cumulative_prod": lambda xp, x, y: xp.cumulative_prod(x, axis=0) + y,
    "norm": lambda xp, x, y: y * xp.linalg.vector_norm(x),
    "matmul": lambda xp, x, y: x @ y / 3,
    "matmul by vector": lambda xp, x, y: (x @ y[:, 0]) * y,
    "tensordot": lambda xp, x, y: xp.tensordot(x, y, axes=1),
    "trace": lambda xp, x, y: xp.sum(xp.linalg.diagonal(x)) * y,
    "transpose": lambda xp, x, y: xp.matrix_transpose(x) * y,
    "permute": lambda xp, x, y: xp.permute_dims(x, (1, 0)) - y,
    "roll": lambda xp, x, y: xp.roll(x, 1, axis=0) * y,
    "flip": lambda xp, x, y: xp.flip(x, axis=0) * y,
    "tril": lambda xp, x, y: xp.tril(x) + xp.triu(y),
    "concat": lambda xp, x, y: xp.concat([x[1:], y[:1]]),
    "stack": lambda xp, x, y: xp.sum(xp.stack([x, y, x * y]), axis=0),
    "reshape": lambda xp, x, y: xp.reshape(xp.reshape(x, (-1,)), y.shape) * y,
    "broadcast": lambda xp, x, y: xp.broadcast_to(x[:1], y.shape) * y,
    "slice": lambda xp, x, y: x[:, ::2] @ y[: x[:, ::2].shape[-1]],
    "where": lambda xp, x, y: xp.where(_is_larger(xp, x, y), x, -y),
    "copy": lambda xp, x, y: xp.copy(x),
    "written exp": _written_exp,
}
"""Steps for matrices of any size, also of none, and of complex numbers."""

NOT_EMPTY: dict[str, Step] = {
    "first row": lambda xp, x, y: x[0] * y,
    "index": lambda xp, x, y: x[[2, 0, 2], :] * y[0],
    "index both": lambda xp, x, y: x[[2, 0, 1], [1, 1, 0]] * y,
    "take": lambda xp, x, y: xp.take(x, xp.asarray([1, 1, 0]), axis=1) + y,
    "fft": lambda xp, x, y: xp.real(xp.fft.fft(x) * xp.fft.ifft(y)) + x,
    "written": _written,
    "written diagonally": _written_diagonally,
    "scattered": _scattered,
    "overwritten": _overwritten,
    "inv": lambda xp, x, y: xp.linalg.inv(_regular(xp, x)) * y,
    "solve": lambda xp, x, y: xp.linalg.solve(_regular(xp, x), y),
    "det": lambda xp, x, y: xp.linalg.det(x) * y,
    "eigvalsh": lambda xp, x, y: xp.linalg.eigvalsh(_hermitian(xp, xp.tanh(x))) * y,
    "eigh": _of_eigenvalues,
    "svd": _of_singular_values,
    "svdvals": lambda xp, x, y: xp.linalg.svdvals(x) * y,
    "qr": _projected,
    "qr of tall": _projected_tall,
    "cholesky": lambda xp, x, y: (
        xp.linalg.cholesky(xp.tanh(x) @ _adjoint(xp, xp.tanh(x)) + _eye(xp, x)) * y
    ),
    "matrix_power": lambda xp, x, y: xp.linalg.matrix_power(x, 3) / 4 + y,
}

REAL: dict[str, Step] = {
    **_same("floor", "ceil", "trunc", "round"),
    **_of_both("hypot", "logaddexp", "maximum", "minimum"),
    # The signs of zeros and of NaN are what a library makes them.
    "atan2": lambda xp, x, y: xp.atan2(x + 0.0, y + 0.0),
    "copysign": lambda xp, x, y: xp.copysign(x, xp.where(y == y, y + 0.0, 1.0)),
    "remainder": lambda xp, x, y: xp.remainder(x, y) + 0.0,
    "remainder of number": lambda xp, x, y: xp.remainder(x, 0.75) + 0.0,
    "clip": lambda xp, x, y: xp.clip(x, -1.0, 1.0),
    "clip below": lambda xp, x, y: xp.clip(x, 0.0),
    "clip by tensors": lambda xp, x, y: xp.clip(x, y - 1, y * y),
    "var": lambda xp, x, y: y * xp.var(x, axis=0),
}

REAL_NOT_EMPTY: dict[str, Step] = {
    "max": lambda xp, x, y: y * xp.max(x),
    "min": lambda xp, x, y: y * xp.min(x, axis=1),
    "std": lambda xp, x, y: y * xp.std(x),
    "sort": lambda xp, x, y: xp.sort(x, axis=-1) * y,
    "sort down": lambda xp, x, y: xp.sort(x, axis=0, descending=True) * y,
    "diff": lambda xp, x, y: xp.sum(xp.diff(x, axis=0)) * y,
    "take along": lambda xp, x, y: xp.take_along_axis(x, xp.argsort(y, axis=0), axis=0),
    **{
        f"norm {ord}": lambda xp, x, y, ord=ord: y * xp.linalg.vector_norm(x, ord=ord)
        for ord in (0, 0.5, 1, 3, 4, np.inf, -np.inf)
    },
    **{
        f"matrix norm {ord}": lambda xp, x, y, ord=ord: y * xp.linalg.matrix_norm(x, ord=ord)
        for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf)
    },
    "slogdet": lambda xp, x, y: xp.linalg.slogdet(_regular(xp, x))[1] * y,
    "pinv": lambda xp, x, y: xp.linalg.pinv(_regular(xp, x)) * y,
}
OF_LAPACK = {
    *("eigvalsh", "eigh", "svd", "svdvals", "qr", "qr of tall", "cholesky", "pinv"),
    *("matrix norm nuc", "matrix norm 2", "matrix norm -2"),
    *("inv", "solve", "det", "slogdet", "matrix_power"),
}
"""Those whose results are roundings at some matrices, and which refuse what is not finite."""
WRONG_IN_TORCH = {"solve", "det", "slogdet", "cumulative_prod"}
"""Those whose forward mode is wrong in PyTorch in a batch, at singular matrices, and where it is
differentiated once more: see ``docs/fidelity.md``."""
JUMPS = {"floor", "ceil", "trunc", "round", "sign", "remainder", "remainder of number"}
BRANCHED = {
    "sqrt",
    "power 2.5",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "log",
    "log1p",
    "log2",
    "log10",
}
"""Those that have two values at each of some complex numbers, by the sign of a zero."""
OF_SIGNS = {"abs", "norm 0.5", "norm 1", "norm 3", "norm 4", "norm inf", "norm -inf"}
"""Those whose derivatives have the sign of NaN, which is 0 in PyTorch and NaN in the standard."""
STEPS = {**EVERYWHERE, **NOT_EMPTY, **REAL, **REAL_NOT_EMPTY}
COMPLEX = {**EVERYWHERE, **NOT_EMPTY}
EMPTY = {**EVERYWHERE, **REAL}

INF, NAN = np.inf, np.nan
FINITE = [
    np.zeros((3, 3)),
    np.ones((3, 3)),
    np.eye(3),
    -np.eye(3),
    np.diag([1.0, 1.0, 2.0]),
    np.array([[1.0, 2, 3], [2, 4, 6], [1, 0, 1]]),
    np.array([[0.0, 1, -1], [2, 0.5, -0.5], [1, 3, 1]]),
    np.array([[-0.0, 0.0, 1], [0.0, -0.0, -1], [-2, 0, 0]]),
]
NEARLY_EQUAL = [np.array([[1, 1e-9, 0], [1e-9, 1, 0], [0, 0, 2]])]
NOT_FINITE = [
    np.array([[INF, 1, 2], [1, -1, 0], [0, 2, 1]]),
    np.array([[1, 0, -INF], [2, -1, 0], [INF, 2, 0]]),
    np.array([[1, NAN, 2], [1, -1, 0], [0, 2, 1]]),
]
KINDS = (
    *("grad", "jvp", "vjp", "jacfwd", "jacrev", "hessian", "linearize"),
    *("functionalize", "vmap", "vmap", "vmap"),
)
OF_COMPLEX = ("grad", "jvp", "vjp", "linearize", "functionalize", "vmap", "vmap")
ORDERS = {"vmap": 0, "functionalize": 0, "hessian": 2}
BATCHES = (2, 3)
ROUNDINGS = 8
"""How many are tried, to find how much a result is worth."""


@dataclass
class Case:
    """A program, its transforms from the innermost, and two matrices with a batch each vmap."""

    steps: list[tuple[str, bool]]
    transforms: list[tuple[str, int]]
    arrays: list[np.ndarray]

    @property
    def is_differentiated(self) -> bool:
        return any(ORDERS.get(kind, 1) for kind, _ in self.transforms)

    @property
    def has_decompositions(self) -> bool:
        return not OF_LAPACK.isdisjoint(name for name, _ in self.steps)

    def run(self, side: Any) -> np.ndarray:
        """Return what one of the two libraries computes. Raises whatever it raises."""
        function = _program(self.steps, side)
        for kind, argnums in self.transforms:
            function = _transformed(kind, argnums, function, side)
        result = function(*map(side.tensor, self.arrays))
        return np.asarray(result if side is SIDES[0] else result.resolve_conj().numpy(force=True))

    def rounded(self) -> Iterator[Case]:
        """Yield the same case with roundings added to its matrices.

        Numbers that a special matrix has exactly stay as they are, and with them ties, zeros and
        infinities; but decompositions have roundings of their own there.
        """
        for seed in range(ROUNDINGS):
            rng = np.random.default_rng(seed)
            arrays = [_rounded(each, rng, self.has_decompositions) for each in self.arrays]
            yield Case(self.steps, self.transforms, arrays)

    def uncertainty(self, values: np.ndarray) -> np.ndarray:
        """Return how far PyTorch's ``values`` move with roundings of the matrices.

        Infinite where not one digit of them stays. Those of decompositions are as exact as the
        largest of a matrix is.
        """
        far, size = np.zeros(values.shape), abs(values)
        for case in self.rounded():
            try:
                moved = case.run(SIDES[1])
            except RuntimeError:  # of LAPACK
                continue
            same = (moved == values) | (np.isnan(moved) & np.isnan(values))
            distance = np.nan_to_num(abs(moved - values), nan=np.inf, posinf=np.inf)
            far = np.maximum(far, np.where(same, 0.0, distance))
        if self.has_decompositions and values.ndim > 1:
            far, size = (np.max(each, axis=(-2, -1), keepdims=True) for each in (far, size))
        return np.broadcast_to(
            np.where(far > 0.1 * size + tolerance(values.dtype), np.inf, far), values.shape
        )

    def __str__(self) -> str:
        arrays = ", ".join(repr(each) for each in self.arrays)
        return f"Case({self.steps}, {self.transforms}, [{arrays}])"


def tolerance(dtype: np.dtype[Any]) -> float:
    """Return the absolute and relative difference that is none."""
    return 2e-3 if dtype in (np.float32, np.complex64) else 1e-5


def _rounded(x: np.ndarray, rng: np.random.Generator, everywhere: bool) -> np.ndarray:
    size = (
        np.maximum(abs(x), 1.0) if everywhere else np.where(x * 8 == np.round(x * 8), 0.0, abs(x))
    )
    by = (
        rng.choice([-16, 16], x.shape) * np.finfo(x.dtype).eps * np.where(np.isfinite(x), size, 0.0)
    )
    return (x + by).astype(x.dtype)


def drawn(rng: np.random.Generator, is_special: bool) -> Case:
    """Draw a case; a special one has zeros, ties, infinities, NaN, or no elements."""
    size = 0 if is_special and rng.random() < 0.05 else 3
    dtype = rng.choice(["float64"] * 6 + ["float32"] * 2 + ["complex128"] * 2)
    names = COMPLEX if dtype == "complex128" else STEPS
    if not size:
        names = {name: step for name, step in EMPTY.items() if name in names}
    transforms, order = [], 0
    for _ in range(rng.integers(1, 5)):
        kind = str(rng.choice(OF_COMPLEX if dtype == "complex128" else KINDS))
        order += ORDERS.get(kind, 1)
        if order > 2:
            break
        if kind != "vmap" or [each for each, _ in transforms].count("vmap") < len(BATCHES):
            transforms.append((kind, int(rng.integers(2))))
    excluded = set() if _is_right_in_torch(transforms) else WRONG_IN_TORCH
    special = FINITE
    if is_special and dtype == "complex128":
        excluded = excluded | WRONG_IN_TORCH | BRANCHED | {"pow", "of zero"}
    if is_special and rng.integers(2):
        excluded = excluded | OF_LAPACK
        special = FINITE if dtype == "complex128" else FINITE + NOT_FINITE
    elif is_special:
        special = FINITE + NEARLY_EQUAL
    known = sorted(names.keys() - excluded)
    steps = [
        (known[rng.integers(len(known))], bool(rng.integers(2))) for _ in range(rng.integers(1, 4))
    ]
    if not OF_LAPACK.isdisjoint(name for name, _ in steps):  # of which roundings differ
        steps = [step for step in steps if step[0] not in JUMPS]
    batch = BATCHES[: [kind for kind, _ in transforms].count("vmap")]
    arrays = []
    for _ in range(2):
        samples = rng.uniform(-1, 1, (int(np.prod(batch)), size, size))
        if dtype == "complex128":
            samples = samples + 1j * rng.uniform(-1, 1, samples.shape)
        for n in range(len(samples)):
            if is_special and size and rng.integers(2):
                samples[n] = special[rng.integers(len(special))]
        arrays.append(samples.reshape(*batch, size, size).astype(dtype))
    return Case(steps, transforms, arrays)


def _is_right_in_torch(transforms: list[tuple[str, int]]) -> bool:
    kinds = {kind for kind, _ in transforms}
    return len(transforms) < 2 or kinds.isdisjoint(("jvp", "jacfwd", "linearize", "hessian"))


def _program(steps: list[tuple[str, bool]], side: Any) -> Callable[..., Any]:
    def function(x: Any, y: Any) -> Any:
        for name, exchanged in steps:
            step = STEPS[name]
            x, y = (y, step(side, y, x)) if exchanged else (step(side, x, y), y)
        return x + y

    return function


def _transformed(
    kind: str, argnums: int, function: Callable[..., Any], side: Any
) -> Callable[..., Any]:
    """Return another function of two matrices, or of batches of them."""

    def scalar(x: Any, y: Any) -> Any:
        return side.sum(side.real(function(x, y)))

    def along(x: Any, y: Any) -> Any:
        return side.func.jvp(function, (x, y), (side.ones_like(x), 2 * side.ones_like(y)))[1]

    def back(x: Any, y: Any) -> Any:
        result, pull = side.func.vjp(function, x, y)
        return pull(side.ones_like(result))[argnums]

    def linearized(x: Any, y: Any) -> Any:
        _, push = side.func.linearize(function, x, y)
        return push(side.ones_like(x), 2 * side.ones_like(y))

    if kind == "vmap":
        return side.vmap(function)
    if kind == "functionalize":
        return side.func.functionalize(function)
    if kind in ("grad", "hessian"):
        return getattr(side.func, kind)(scalar, argnums=argnums)
    if kind in ("jacfwd", "jacrev"):
        return getattr(side.func, kind)(function, argnums=argnums)
    if kind == "vjp":
        return back
    # PyTorch's linearize does not nest.
    return linearized if kind == "linearize" and side is SIDES[0] else along
