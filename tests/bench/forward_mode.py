"""Costs of forward mode compared with PyTorch's, in one run: CPU time of the thread, taking turns.

    OPENBLAS_NUM_THREADS=1 python -m tests.bench.forward_mode

It needs PyTorch (the extra "conformance"). Both are on one thread: NumPy's by the variable.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from opdispatch import Tensor, func
from opdispatch import array_api as xp
from tests.bench.timing import least_seconds

rng = np.random.default_rng(0)
LAYERS = 6


def residual(namespace: Any, weights: Any) -> Callable[[Any], Any]:
    """Return a function of several small layers."""

    def function(x: Any) -> Any:
        for _ in range(LAYERS):
            x = namespace.tanh(weights @ x) + x
        return x

    return function


FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Callable[[Any], Any]], tuple[int, ...]]] = {
    "sum(sin(x) * exp(x)), 8 elements": (
        lambda xp, w: lambda x: xp.sum(xp.sin(x) * xp.exp(x)),
        (8,),
    ),
    "tanh(w @ x) * x, 8 elements": (lambda xp, w: lambda x: xp.tanh(w @ x) * x, (8,)),
    "tanh(w @ x) * x, 200 elements": (lambda xp, w: lambda x: xp.tanh(w @ x) * x, (200,)),
    "six layers, 8 elements": (residual, (8,)),
    "inv(x) @ x[0], 8 x 8": (lambda xp, w: lambda x: xp.linalg.inv(x) @ x[0], (8, 8)),
    "tanh(x) * x + x * x, 100,000 elements": (
        lambda xp, w: lambda x: xp.tanh(x) * x + x * x,
        (100_000,),
    ),
}
LARGEST_JACOBIAN, LARGEST_HESSIAN = 1000, 100


def calls(name: str) -> dict[str, dict[str, Callable[[], object]]]:
    """Return the transforms of a function, ours and PyTorch's."""
    make, shape = FUNCTIONS[name]
    x, t = rng.normal(size=(2, *shape))
    w = rng.normal(size=(shape[0], shape[0])) if x.size < LARGEST_JACOBIAN else np.ones(())
    ours, theirs = make(xp, Tensor(w)), make(torch, torch.from_numpy(w))
    mine, other = (Tensor(x), Tensor(t)), (torch.from_numpy(x), torch.from_numpy(t))
    found: dict[str, dict[str, Callable[[], object]]] = {
        "jvp": {
            "ours": lambda: func.jvp(ours, mine[:1], mine[1:]),
            "PyTorch": lambda: torch.func.jvp(theirs, other[:1], other[1:]),
        }
    }
    if x.size < LARGEST_JACOBIAN:
        found["jacfwd"] = {
            "ours": lambda: func.jacfwd(ours)(mine[0]),
            "PyTorch": lambda: torch.func.jacfwd(theirs)(other[0]),
        }
    if x.size < LARGEST_HESSIAN:
        found["hessian of the sum"] = {
            "ours": lambda: func.hessian(lambda x: xp.sum(ours(x)))(mine[0]),
            "PyTorch": lambda: torch.func.hessian(lambda x: torch.sum(theirs(x)))(other[0]),
        }
        found["linearize"] = {
            "ours": lambda: func.linearize(ours, mine[0])[1](mine[1]),
            "PyTorch": lambda: torch.func.linearize(theirs, other[0])[1](other[1]),
        }
    return found


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = Table("function", "transform", "ours, us", "PyTorch, us", "ratio")
    for name in FUNCTIONS:
        for transform, contestants in calls(name).items():
            seconds = least_seconds(contestants, time.thread_time)
            one, other = seconds["ours"], seconds["PyTorch"]
            table.add_row(
                name, transform, f"{one * 1e6:.0f}", f"{other * 1e6:.0f}", f"{one / other:.2f}"
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
