"""Costs of dispatching in one process, compared with its peers: ``make bench``.

Every contestant calls the same Python function of two arrays, which returns one of them; what it
costs beyond calling the function itself is the price of dispatching. ``functools.singledispatch``
looks at the type of the first argument; ``plum``, ``multipledispatch`` and ``ovld`` at the types of
both; none of them knows of keys, layouts, schemas or local modes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import ovld
import plum
from multipledispatch import dispatch
from rich.console import Console
from rich.table import Table

from opdispatch import Dispatcher, DispatchKey, DispatchKeySet, Library, Tensor
from opdispatch.library.ops import Ops
from tests.bench.timing import median_seconds

try:
    import torch
except ImportError:
    torch = None

# PyTorch undoes the registrations of a library that is collected, and calls what is gone.
kept_alive: list[object] = []


def kernel(x: object, y: object) -> object:
    """The work: none, so that the dispatching stands out."""
    return x


def contestants() -> dict[str, Callable[[], object]]:
    """The calls to time, by name."""
    dispatcher = Dispatcher()
    library = Library("bench", "DEF", dispatcher=dispatcher)
    library.define("first(Tensor x, Tensor y) -> Tensor")
    library.impl("first", kernel, "CPU")
    library.define("scaled(Tensor x, Tensor y, *, int k=1) -> Tensor")
    library.impl("scaled", lambda x, y, *, k: x, "CPU")
    ops = Ops(dispatcher)
    library.define("offset(Tensor x, Tensor y, int k=1) -> Tensor")
    library.impl("offset", lambda x, y, k: x, "CPU")
    overload = ops.bench.first.default
    offset = ops.bench.offset.default
    scaled = ops.bench.scaled.default

    single = functools.singledispatch(lambda x, y: None)
    single.register(np.ndarray, kernel)

    plum_function = plum.Dispatcher()

    @plum_function
    def by_plum(x: np.ndarray, y: np.ndarray):  # a return type would be checked, and cost
        return x

    @dispatch(np.ndarray, np.ndarray, namespace={})
    def by_multipledispatch(x, y):
        return x

    @ovld.ovld
    def by_ovld(x: np.ndarray, y: np.ndarray):
        return x

    x, y = np.ones(2), np.ones(2)
    tensor, cpu = Tensor(x), DispatchKeySet.of(DispatchKey.CPU)
    calls: dict[str, Callable[[], object]] = {
        "plain function": lambda: kernel(x, y),
        "opdispatch, held overload": lambda: overload(x, y),
        "opdispatch, ops.ns.name": lambda: ops.bench.first(x, y),
        "opdispatch, op(x, y=y)": lambda: overload(x, y=y),
        "opdispatch, op(x=x, y=y)": lambda: overload(x=x, y=y),
        "opdispatch, a default left out": lambda: offset(x, y),
        "opdispatch, op(x, y, 2)": lambda: offset(x, y, 2),
        "opdispatch, op(x, y, k=2)": lambda: offset(x, y, k=2),
        "opdispatch, k is keyword-only": lambda: scaled(x, y, k=2),
        "opdispatch, redispatch": lambda: overload.redispatch(cpu, x, y),
        "opdispatch, redispatch_boxed": lambda: overload.redispatch_boxed(cpu, [x, y]),
        "opdispatch, readable twin": lambda: overload.interpret_call((x, y), {}),
        "opdispatch.Tensor, through autograd": lambda: overload(tensor, tensor),
        "functools.singledispatch": lambda: single(x, y),
        "plum": lambda: by_plum(x, y),
        "multipledispatch": lambda: by_multipledispatch(x, y),
        "ovld": lambda: by_ovld(x, y),
    }
    if torch is not None:
        torch_library = torch.library.Library("opdispatch_bench", "DEF")
        kept_alive.append(torch_library)
        torch_library.define("first(Tensor x, Tensor y) -> Tensor")
        a, made = torch.ones(2), torch.ones(2)
        torch_library.impl("first", lambda x, y: made, "CPU")
        by_torch = torch.ops.opdispatch_bench.first.default
        calls["torch, Python kernel"] = lambda: by_torch(a, a)
    return calls


def main() -> None:
    """Time every contestant and print the table."""
    calls = contestants()
    seconds = median_seconds(calls)
    plain = seconds["plain function"]
    single = seconds["functools.singledispatch"] - plain
    table = Table(title="one call with two array arguments")
    for heading in ("call", "us", "us over the plain function", "x singledispatch"):
        table.add_column(heading, justify="left" if heading == "call" else "right")
    for name, took in seconds.items():
        over = took - plain
        ratio = "" if name == "plain function" else f"{over / single:.2f}"
        table.add_row(name, f"{took * 1e6:.3f}", f"{over * 1e6:.3f}", ratio)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
