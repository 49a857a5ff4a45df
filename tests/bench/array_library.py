"""What an operator of the library ``array`` costs over NumPy's function, in one process.

Each contestant works on float32 arrays of four elements. They take turns; medians of the
thread's CPU time are quoted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from opdispatch import Tensor, ops
from opdispatch import array_api as xp
from tests.bench.timing import median_seconds

X = np.ones(4, np.float32)
M = np.ones((2, 2), np.float32)
T = Tensor(X)
R = Tensor(X, requires_grad=True)

CALLS: dict[str, dict[str, Callable[[], object]]] = {
    "np.add(x, x)": {
        "np.add(x, x)": lambda: np.add(X, X),
        "ops.array.add.Tensor, held": (lambda add: lambda: add(X, X))(ops.array.add.Tensor),
        "ops.array.add(x, x)": lambda: ops.array.add(X, X),
        "array_api.add(x, x)": lambda: xp.add(X, X),
        "array_api.add(x, 2.0)": lambda: xp.add(X, 2.0),
        "Tensor + Tensor": lambda: T + T,
    },
    "np.sum(x)": {
        "np.sum(x)": lambda: np.sum(X),
        "ops.array.sum(x)": lambda: ops.array.sum(X),
    },
    "np.sum(x, axis=0)": {
        "np.sum(x, axis=0)": lambda: np.sum(X, axis=0),
        "ops.array.sum(x, axis=0)": lambda: ops.array.sum(X, axis=0),
    },
    "x[0]": {
        "x[0]": lambda: X[0],
        "Tensor[0]": lambda: T[0],
    },
    "multiply.Tensor, held, of tensors": {
        "multiply.Tensor, held, of tensors": (lambda multiply: lambda: multiply(T, T))(
            ops.array.multiply.Tensor
        ),
        "the same, recorded": (lambda multiply: lambda: multiply(R, T))(ops.array.multiply.Tensor),
    },
    "ops.array.sum(t)": {
        "ops.array.sum(t)": lambda: ops.array.sum(T),
        "the same, recorded": lambda: ops.array.sum(R),
    },
    "ops.array.exp(t)": {
        "ops.array.exp(t)": lambda: ops.array.exp(T),
        "the same, recorded": lambda: ops.array.exp(R),
    },
    "ops.array.sum(t, axis=0)": {
        "ops.array.sum(t, axis=0)": lambda: ops.array.sum(T, axis=0),
        "the same, recorded": lambda: ops.array.sum(R, axis=0),
    },
    "Tensor[0]": {
        "Tensor[0]": lambda: T[0],
        "the same, recorded": lambda: R[0],
    },
    "Tensor[1:]": {
        "Tensor[1:]": lambda: T[1:],
        "the same, recorded": lambda: R[1:],
    },
    "np.matmul(m, m)": {
        "np.matmul(m, m)": lambda: np.matmul(M, M),
        "ops.array.matmul(m, m)": lambda: ops.array.matmul(M, M),
    },
}


def main() -> None:
    """Times all and prints a table."""
    table = Table(title="four float32 elements")
    for heading in ("call", "us", "over the first"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for plain, calls in CALLS.items():
        seconds = median_seconds(calls, time.thread_time)
        for name, took in seconds.items():
            over = "" if name == plain else f"{(took - seconds[plain]) * 1e6:.2f}"
            table.add_row(name, f"{took * 1e6:.2f}", over)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
