"""Costs of ``vmap`` over one call, and gains over a loop of as many as there are samples.

    python -m tests.bench.transforms

Contestants take turns; medians are quoted.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch import Tensor, func, vmap
from opdispatch import array_api as xp
from opdispatch.autograd import grad
from tests.bench.timing import median_seconds

rng = np.random.default_rng(0)
SAMPLES = 64
WEIGHTS = Tensor(rng.normal(size=(32, 16)).astype(np.float32))
LEAF = Tensor(WEIGHTS.array, requires_grad=True)
X = Tensor(rng.normal(size=(SAMPLES, 32)).astype(np.float32))
POINT = Tensor(rng.normal(size=16).astype(np.float32))


def layer(sample: Tensor) -> Tensor:
    """Three operators."""
    return xp.sum(xp.tanh(sample @ WEIGHTS))


def loss(weights: Tensor, sample: Tensor) -> Tensor:
    """Of one sample."""
    return xp.sum(xp.tanh(sample @ weights) ** 2)


def field(point: Tensor) -> Tensor:
    """Of a Jacobian of 16 rows."""
    return xp.tanh(point * xp.sum(point))


def of_each(function: Callable[[Tensor], Tensor]) -> Tensor:
    """The loop."""
    return xp.stack([function(X[n]) for n in range(SAMPLES)])


def jacobian_by_rows() -> Tensor:
    """Run one backward pass for each row."""
    leaf = Tensor(POINT.array, requires_grad=True)
    result = field(leaf)
    return xp.stack([grad(result[n], leaf, retain_graph=True)[0] for n in range(16)])


CALLS: dict[str, dict[str, Callable[[], object]]] = {
    "exp of 64 samples": {
        "a loop": lambda: of_each(xp.exp),
        "vmap": lambda: vmap(xp.exp)(X),
        "one call of all": lambda: xp.exp(X),
    },
    "three operators, 64 samples": {
        "a loop": lambda: of_each(layer),
        "vmap": lambda: vmap(layer)(X),
        "written for batches": lambda: xp.sum(xp.tanh(X @ WEIGHTS), axis=1),
    },
    "per-sample gradients, 64 samples": {
        "a loop of autograd.grad": lambda: of_each(lambda x: grad(loss(LEAF, x), LEAF)[0]),
        "vmap(grad(f))": lambda: vmap(func.grad(loss), in_dims=(None, 0))(WEIGHTS, X),
    },
    "a Jacobian of 16 rows": {
        "a loop of autograd.grad": jacobian_by_rows,
        "jacrev": lambda: func.jacrev(field)(POINT),
    },
}


def main() -> None:
    """Print a table."""
    table = Table("what", "how", "us", "times as fast")
    for what, contestants in CALLS.items():
        seconds = median_seconds(contestants)
        slowest = next(iter(seconds.values()))
        for how, each in seconds.items():
            table.add_row(what, how, f"{each * 1e6:,.0f}", f"{slowest / each:.1f}")
            what = ""
    Console().print(table)


if __name__ == "__main__":
    main()
