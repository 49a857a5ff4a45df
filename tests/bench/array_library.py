"""Costs of the ways to an operator of the library ``array`` over NumPy's function, in one process,
and what a call costs that is recorded for gradients over one that is not. ``array_operators`` has
the operators one by one. Where torch is installed, a third table has the same calls of tensors in
both libraries.

Each contestant works on float32 arrays of four elements. They take turns, and the thread's CPU time
is read. The first table quotes medians, and the least of many rounds; the others, of small
differences, the least alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opdispatch import Library, Tensor, ops
from opdispatch import array_api as xp
from tests.bench.timing import least_seconds, least_seconds_of_many, median_seconds

try:
    import torch
except ImportError:
    torch = None

X = np.ones(4, np.float32)
M = np.ones((2, 2), np.float32)
T = Tensor(X)
MASK, PLACES = np.array([True, False, True, False]), np.array([0, 1])

CALLS: dict[str, dict[str, Callable[[], object]]] = {
    "np.add(x, x)": {
        "np.add(x, x)": lambda: np.add(X, X),
        "ops.array.add.Tensor, held": (lambda add: lambda: add(X, X))(ops.array.add.Tensor),
        "ops.array.add(x, x)": lambda: ops.array.add(X, X),
        "array_api.add(x, x)": lambda: xp.add(X, X),
        "array_api.add(x, 2.0)": lambda: xp.add(X, 2.0),
        "Tensor + Tensor": lambda: T + T,
    },
    "x[0]": {
        "x[0]": lambda: X[0],
        "Tensor[0]": lambda: T[0],
    },
}


class Operands(NamedTuple):
    """Two vectors and two matrices; gradients of the first ones may be recorded."""

    v: Tensor
    w: Tensor
    m: Tensor
    n: Tensor

    @classmethod
    def of(cls, requires_grad: bool) -> Operands:
        """New ones."""
        v, m = (Tensor(each.copy(), requires_grad=requires_grad) for each in (X, M))
        return cls(v, Tensor(X.copy()), m, Tensor(M.copy()))


def _written(v: Tensor, w: Tensor) -> Tensor:
    y = v * 1.0
    y[...] = w
    return y


def _registered(name: str, kernel: Callable[[Tensor], Tensor]) -> Callable[[Operands], object]:
    """An operator with ``register_autograd``, which keeps its argument."""
    library = Library("bench_array_library", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, kernel, "CPU")
    library.register_autograd(
        name,
        lambda ctx, grad: grad * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    op = getattr(ops.bench_array_library, name).default
    return lambda operands: op(operands.v)


RECORDED: dict[str, Callable[[Operands], object]] = {
    "multiply.Tensor(v, w), held": (lambda call: lambda o: call(o.v, o.w))(
        ops.array.multiply.Tensor
    ),
    "v * v": lambda o: o.v * o.v,
    "v + w": lambda o: o.v + o.w,
    "v * 2.0": lambda o: o.v * 2.0,
    "-v": lambda o: -o.v,
    "exp(v)": lambda o: ops.array.exp(o.v),
    "tanh(v)": lambda o: ops.array.tanh(o.v),
    "pow(v, w)": lambda o: ops.array.pow(o.v, o.w),
    "sum(v)": lambda o: ops.array.sum(o.v),
    "sum(v, axis=0)": lambda o: ops.array.sum(o.v, axis=0),
    "mean(v, axis=0, keepdims=True)": lambda o: ops.array.mean(o.v, axis=0, keepdims=True),
    "max(v)": lambda o: ops.array.max(o.v),
    "matmul(m, n)": lambda o: ops.array.matmul(o.m, o.n),
    "where(mask, v, w)": lambda o: ops.array.where(MASK, o.v, o.w),
    "take(v, places, axis=0)": lambda o: ops.array.take(o.v, PLACES, axis=0),
    "concat([v, w])": lambda o: ops.array.concat([o.v, o.w]),
    "stack([v, w])": lambda o: ops.array.stack([o.v, o.w]),
    "unstack(v), four results": lambda o: ops.array.unstack(o.v),
    "v[0]": lambda o: o.v[0],
    "v[1:]": lambda o: o.v[1:],
    "v[places]": lambda o: o.v[PLACES],
    "reshape(v, (2, 2))": lambda o: ops.array.reshape(o.v, (2, 2)),
    "permute_dims(m, (1, 0))": lambda o: ops.array.permute_dims(o.m, (1, 0)),
    "m.T": lambda o: o.m.T,
    "expand_dims(v, 0)": lambda o: ops.array.expand_dims(o.v, 0),
    "squeeze(m[:1], 0), two calls": lambda o: ops.array.squeeze(o.m[:1], 0),
    "broadcast_to(v, (2, 4))": lambda o: ops.array.broadcast_to(o.v, (2, 4)),
    "y = v * 1.0; y[...] = w, two calls": lambda o: _written(o.v, o.w),
    "an operator with register_autograd": _registered("halved", lambda x: Tensor(x.array / 2)),
    "one that calls four others": _registered("fourth", lambda x: abs(-(x * x * x))),
}


def beside_torch() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """The same calls here and in torch, of tensors without gradients and of recorded ones."""
    torch.set_num_threads(1)
    v, r, m, s = (Tensor(each.copy(), requires_grad=g) for each in (X, M) for g in (False, True))
    tv, tr, tm, ts = (
        torch.ones(shape, requires_grad=g) for shape in (4, (2, 2)) for g in (False, True)
    )
    places = torch.tensor([0, 1])
    return {
        "add(v, v)": (lambda: xp.add(v, v), lambda: torch.add(tv, tv)),
        "v + v": (lambda: v + v, lambda: tv + tv),
        "v * 2.0": (lambda: v * 2.0, lambda: tv * 2.0),
        "-v": (lambda: -v, lambda: -tv),
        "exp(v)": (lambda: xp.exp(v), lambda: torch.exp(tv)),
        "sum(v)": (lambda: xp.sum(v), lambda: torch.sum(tv)),
        "max(v)": (lambda: xp.max(v), lambda: torch.max(tv)),
        "m @ m": (lambda: m @ m, lambda: tm @ tm),
        "v[0]": (lambda: v[0], lambda: tv[0]),
        "v[1:]": (lambda: v[1:], lambda: tv[1:]),
        "m[:, 0]": (lambda: m[:, 0], lambda: tm[:, 0]),
        "v[places]": (lambda: v[PLACES], lambda: tv[places]),
        "reshape": (lambda: xp.reshape(v, (2, 2)), lambda: torch.reshape(tv, (2, 2))),
        "permute_dims": (lambda: xp.permute_dims(m, (1, 0)), lambda: torch.permute(tm, (1, 0))),
        "expand_dims": (lambda: xp.expand_dims(v, axis=0), lambda: torch.unsqueeze(tv, 0)),
        "broadcast_to": (
            lambda: xp.broadcast_to(v, (2, 4)),
            lambda: torch.broadcast_to(tv, (2, 4)),
        ),
        "concat": (lambda: xp.concat([v, v]), lambda: torch.concat([tv, tv])),
        "stack": (lambda: xp.stack([v, v]), lambda: torch.stack([tv, tv])),
        "unstack": (lambda: xp.unstack(v), lambda: torch.unbind(tv)),
        "r * v, recorded": (lambda: r * v, lambda: tr * tv),
        "exp(r), recorded": (lambda: xp.exp(r), lambda: torch.exp(tr)),
        "sum(r), recorded": (lambda: xp.sum(r), lambda: torch.sum(tr)),
        "s @ m, recorded": (lambda: s @ m, lambda: ts @ tm),
        "r[1:], recorded": (lambda: r[1:], lambda: tr[1:]),
        "concat([r, r]), recorded": (lambda: xp.concat([r, r]), lambda: torch.concat([tr, tr])),
        "sum(sin(r) * v).backward()": (
            lambda: xp.sum(xp.sin(r) * v).backward(),
            lambda: torch.sum(torch.sin(tr) * tv).backward(),
        ),
    }


def _called(call: Callable[[Operands], object], operands: Operands) -> Callable[[], object]:
    return lambda: call(operands)


def _print(title: str, headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    table = Table(title=title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    Console(width=100).print(table)


def main() -> None:
    """Time all and print two tables."""
    rows = []
    for plain, calls in CALLS.items():
        measured = [times(calls, time.thread_time) for times in (median_seconds, least_seconds)]
        for name in calls:
            row = [name]
            for seconds in measured:
                over = "" if name == plain else f"{(seconds[name] - seconds[plain]) * 1e6:.2f}"
                row += [f"{seconds[name] * 1e6:.2f}", over]
            rows.append(tuple(row))
    headings = ("call", "median, us", "over the first", "least, us", "over the first")
    _print("four float32 elements", headings, rows)
    operands, recorded = Operands.of(requires_grad=False), Operands.of(requires_grad=True)
    contestants: dict[str, Callable[[], object]] = {"np.add": lambda: np.add(X, X)}
    for name, call in RECORDED.items():
        contestants[name] = _called(call, operands)
        contestants[f"{name}, recorded"] = _called(call, recorded)
    seconds = least_seconds(contestants, time.thread_time)
    rows = [("np.add(x, x)", f"{seconds['np.add'] * 1e6:.2f}", "")]
    for name in RECORDED:
        more = seconds[f"{name}, recorded"] - seconds[name]
        rows.append((name, f"{seconds[name] * 1e6:.2f}", f"{more * 1e6:.2f}"))
    if torch is not None:
        pairs = beside_torch()
        both = {f"{name}, {n}": call for name, each in pairs.items() for n, call in enumerate(each)}
        found = least_seconds_of_many(both, time.thread_time)
        _print(
            "tensors of four elements, beside torch",
            ("call", "here, us", "torch, us", "x torch"),
            (
                (
                    name,
                    *(f"{found[f'{name}, {n}'] * 1e6:.2f}" for n in range(2)),
                    f"{found[f'{name}, 0'] / found[f'{name}, 1']:.2f}",
                )
                for name in pairs
            ),
        )
    _print(
        "recorded for gradients of v and m", ("call", "not recorded, us", "recorded, us more"), rows
    )


if __name__ == "__main__":
    main()
