"""Costs of operators of the library ``array`` over NumPy's functions, for arrays of NumPy's: one
line each.

The arrays have four elements; what takes longer in NumPy hides what is around it. Contestants take
turns, the thread's CPU time is read, and of many short rounds the least is quoted, and the median.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import opdispatch.array_library
from opdispatch import ops
from tests.bench.timing import over_empty, short_rounds

PAIRS = """
np.add(x, x)                          | array.add(x, x)
np.add(x, 2.0)                        | array.add(x, 2.0)
np.pow(x, 2)                          | array.pow(x, 2)
np.equal(x, 2.0)                      | array.equal(x, 2.0)
np.multiply(2.0, x)                   | array.multiply(2.0, x)
np.floor_divide(x, x)                 | array.floor_divide(x, x)
np.floor_divide(x, 2.0)               | array.floor_divide(x, 2.0)
np.exp(x)                             | array.exp(x)
np.isnan(x)                           | array.isnan(x)
np.sign(x)                            | array.sign(x)
np.maximum(x, x)                      | array.maximum(x, x)
np.where(b, x, x)                     | array.where(b, x, x)
np.where(b, x, 0.0)                   | array.where(b, x, 0.0)
np.where(b, 0.0, x)                   | array.where(b, 0.0, x)
np.clip(x, 0.0, 1.0)                  | array.clip(x, 0.0, 1.0)
np.clip(x, 0.0, None)                 | array.clip(x, 0.0)
np.round(x)                           | array.round(x)
x.astype(np.float64)                  | array.astype(x, np.float64)
np.arange(4)                          | array.arange(4)
np.arange(0.0, 1.0, 0.25)             | array.arange(0.0, 1.0, 0.25)
np.linspace(0.0, 1.0, 4)              | array.linspace(0.0, 1.0, 4)
np.eye(3)                             | array.eye(3)
np.zeros((2, 2))                      | array.zeros((2, 2))
np.zeros((2, 2), np.float32)          | array.zeros((2, 2), dtype=np.float32)
np.full((2, 2), 1.0)                  | array.full((2, 2), 1.0)
np.zeros_like(x)                      | array.zeros_like(x)
np.full_like(x, 2.0)                  | array.full_like(x, 2.0)
np.tril(m)                            | array.tril(m)
np.meshgrid(x, x)                     | array.meshgrid([x, x])
np.reshape(x, (2, 2))                 | array.reshape(x, (2, 2))
np.transpose(m, (1, 0))               | array.permute_dims(m, (1, 0))
np.matrix_transpose(m)                | array.matrix_transpose(m)
np.expand_dims(x, 0)                  | array.expand_dims(x, 0)
np.squeeze(m[:1], 0)                  | array.squeeze(m[:1], 0)
np.broadcast_to(x, (2, 4))            | array.broadcast_to(x, (2, 4))
np.broadcast_arrays(x, x)             | array.broadcast_arrays([x, x])
np.moveaxis(m, 0, 1)                  | array.moveaxis(m, 0, 1)
np.flip(x)                            | array.flip(x)
np.roll(x, 1)                         | array.roll(x, 1)
np.concatenate([x, x])                | array.concat([x, x])
np.concatenate([x, x], axis=0)        | array.concat([x, x], axis=0)
np.stack([x, x])                      | array.stack([x, x])
np.unstack(x)                         | array.unstack(x)
np.repeat(x, 2)                       | array.repeat(x, 2)
np.repeat(x, n)                       | array.repeat(x, n)
np.tile(x, (2,))                      | array.tile(x, (2,))
np.take(x, i, axis=0)                 | array.take(x, i, axis=0)
np.take_along_axis(x, i, axis=0)      | array.take_along_axis(x, i, axis=0)
np.searchsorted(x, x)                 | array.searchsorted(x, x)
np.nonzero(x)                         | array.nonzero(x)
np.count_nonzero(x)                   | array.count_nonzero(x)
np.argmax(x)                          | array.argmax(x)
np.sort(x)                            | array.sort(x)
np.flip(np.sort(x))                   | array.sort(x, descending=True)
np.argsort(x)                         | array.argsort(x)
np.unique_counts(x)                   | array.unique_counts(x)
np.sum(x)                             | array.sum(x)
np.sum(x, axis=0)                     | array.sum(x, axis=0)
np.sum(m, axis=1, keepdims=True)      | array.sum(m, axis=1, keepdims=True)
np.mean(x, axis=0)                    | array.mean(x, axis=0)
np.std(x)                             | array.std(x)
np.var(m, axis=0)                     | array.var(m, axis=0)
np.max(x)                             | array.max(x)
np.any(x)                             | array.any(x)
np.all(m, axis=1)                     | array.all(m, axis=1)
np.cumulative_sum(x)                  | array.cumulative_sum(x)
np.cumulative_sum(m, axis=0)          | array.cumulative_sum(m, axis=0)
np.diff(x)                            | array.diff(x)
np.matmul(m, m)                       | array.matmul(m, m)
np.vecdot(x, x)                       | array.vecdot(x, x)
np.vecdot(m, m, axis=0)               | array.vecdot(m, m, axis=0)
np.tensordot(m, m, 1)                 | array.tensordot(m, m, axes=1)
np.tensordot(m, m, ((1,), (0,)))      | array.tensordot(m, m, axes=((1,), (0,)))
np.linalg.outer(x, x)                 | array.linalg_outer(x, x)
np.linalg.trace(m)                    | array.linalg_trace(m)
np.linalg.diagonal(m)                 | array.linalg_diagonal(m)
np.linalg.vector_norm(x)              | array.linalg_vector_norm(x)
np.linalg.vector_norm(m, axis=0)      | array.linalg_vector_norm(m, axis=0)
np.linalg.det(m)                      | array.linalg_det(m)
np.linalg.slogdet(m)                  | array.linalg_slogdet(m)
np.linalg.inv(m)                      | array.linalg_inv(m)
np.linalg.solve(m, m)                 | array.linalg_solve(m, m)
np.linalg.cholesky(p)                 | array.linalg_cholesky(p)
np.linalg.qr(m)                       | array.linalg_qr(m)
np.linalg.eigh(p)                     | array.linalg_eigh(p)
np.linalg.svd(m)                      | array.linalg_svd(m)
np.linalg.pinv(m, rtol=None)          | array.linalg_pinv(m)
np.linalg.matrix_rank(m)              | array.linalg_matrix_rank(m)
np.fft.fft(x)                         | array.fft_fft(x)
np.fft.rfft(x)                        | array.fft_rfft(x)
np.fft.irfft(x)                       | array.fft_irfft(x)
np.fft.fftn(m)                        | array.fft_fftn(m)
np.fft.fftshift(x)                    | array.fft_fftshift(x)
np.fft.fftfreq(4)                     | array.fft_fftfreq(4)
"""

_TEXTS = ("NumPy's", "of the library")

X = np.arange(1, 5, dtype=np.float32)
SCOPE: dict[str, Any] = {
    "np": np,
    "array": ops.array,
    "x": X,
    "m": np.array([[2, 1], [0, 1]], np.float32),
    "b": X > 2,
    "i": np.array([0, 1]),
    "n": np.array([1, 2, 1, 0]),
    "p": np.array([[2, 1], [1, 2]], np.float32),
}


def main() -> None:
    """Time all and print a table, the dearest last."""
    assert opdispatch.array_library, "imported for its operators"
    pairs = [tuple(map(str.strip, line.split("|"))) for line in PAIRS.strip().splitlines()]
    calls = {text: eval(f"lambda: {text}", SCOPE) for pair in pairs for text in pair}
    rounds = short_rounds(calls, time.thread_time)
    least, median = (over_empty(rounds, chosen) for chosen in (min, statistics.median))
    pairs.sort(key=lambda pair: least[pair[1]] - least[pair[0]])
    table = Table(title="arrays of four elements, microseconds: the least, and medians")
    for heading in ("NumPy's", "", "of the library", "", "more", "median of NumPy's", "more"):
        table.add_column(heading, justify="left" if heading in _TEXTS else "right")
    for plain, ours in pairs:
        table.add_row(
            *(escape(plain), f"{least[plain] * 1e6:.2f}"),
            *(escape(ours), f"{least[ours] * 1e6:.2f}"),
            f"{(least[ours] - least[plain]) * 1e6:+.2f}",
            *(f"{median[plain] * 1e6:.2f}", f"{(median[ours] - median[plain]) * 1e6:+.2f}"),
        )
    Console(width=145).print(table)
    for name, seconds in (("least", least), ("median", median)):
        more = statistics.median(seconds[ours] - seconds[plain] for plain, ours in pairs)
        print(f"half of them take at most {more * 1e6:+.2f} more by their {name}")


if __name__ == "__main__":
    main()
