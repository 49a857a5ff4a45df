"""Costs of a call for each kind of schema and each way to call: ``make bench``.

Every kernel is a Python function that returns what it is given, or a constant: what is timed is
dispatching. The contestants are NumPy's arrays, Tensors that need no gradient and Tensors whose
calls are recorded, beside a Python kernel of torch for the same schema, where torch is installed:
of tensors that need no gradient, and of those whose calls are recorded. All take turns, and the
least of many short rounds is quoted.

``python -m tests.bench.schema_kinds [WORD ...]`` times the rows with these words in them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from opdispatch import Dispatcher, Library, Tensor
from opdispatch.library.ops import Ops
from tests.bench.timing import least_seconds_of_many
from tests.schema_kinds import KINDS, SchemaKind

try:
    import torch
except ImportError:
    torch = None

WAYS = ("handle", "packet", "keywords")
# PyTorch undoes the registrations of a library that is collected, and calls what is gone.
kept_alive: list[object] = []


class Contestant(NamedTuple):
    """One column: how its tensors are made, and the namespace that its operators are in."""

    ops: Any
    make: Callable[[], Any]
    dtype: Any
    is_recorded: bool = False


def contestants() -> dict[str, Contestant]:
    """Define each kind's operator here, and in torch where it is installed."""
    dispatcher = Dispatcher()
    kept_alive.append(library := Library("kinds", "DEF", dispatcher=dispatcher))
    _define(library, library.register_autograd)
    ours = Ops(dispatcher).kinds
    x = np.ones(2, np.float32)
    found = {
        "array": Contestant(ours, lambda: x, "float32"),
        "Tensor": Contestant(ours, lambda: Tensor(x), "float32"),
        "recorded": Contestant(ours, lambda: Tensor(x, requires_grad=True), "float32", True),
    }
    if torch is not None:
        torch.set_num_threads(1)
        kept_alive.append(torchs := torch.library.Library("opdispatch_kinds", "DEF"))

        def register(name: str, backward: Any) -> None:
            torch.library.register_autograd(f"opdispatch_kinds::{name}", backward, lib=torchs)

        _define(torchs, register)
        theirs = torch.ops.opdispatch_kinds

        def make() -> Any:
            return torch.ones(2, requires_grad=True)

        found["torch"] = Contestant(theirs, lambda: torch.ones(2), torch.float32)
        found["torch, recorded"] = Contestant(theirs, make, torch.float32, True)
    return found


def _define(library: Any, register_autograd: Callable[[str, Any], None]) -> None:
    for name, kind in KINDS.items():
        library.define(f"{name}{kind.schema}")
        library.impl(name, kind.kernel, "CPU")
        if kind.is_recorded:
            library.define(f"{name}_recorded{kind.schema}")
            library.impl(f"{name}_recorded", kind.kernel, "CPU")
            register_autograd(f"{name}_recorded", kind.backward)


def calls_of(name: str, kind: SchemaKind, way: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each contestant's call of a kind in one way."""
    for title, (ops, make, dtype, is_recorded) in CONTESTANTS.items():
        if is_recorded and not kind.is_recorded:
            continue
        packet = getattr(ops, f"{name}_recorded" if is_recorded else name)
        args, named = kind.arguments(make, dtype, by_name=way == "keywords")
        yield title, _call(packet if way == "packet" else packet.default, args, named)


def _call(op: Any, args: list[Any], named: Mapping[str, Any]) -> Callable[[], object]:
    """Return a function that calls as one would write it: without unpacking arguments."""
    scope = {"op": op} | {f"a{n}": value for n, value in enumerate(args)}
    scope |= {f"_{name}": value for name, value in named.items()}
    parts = [*(f"a{n}" for n in range(len(args))), *(f"{name}=_{name}" for name in named)]
    lines = f"def make({', '.join(scope)}):\n    return lambda: op({', '.join(parts)})\n"
    made: dict[str, Any] = {}
    exec(lines, made)
    call: Callable[[], object] = made["make"](**scope)
    return call


CONTESTANTS = contestants()


def main(words: list[str]) -> None:
    """Time the rows and print the table."""
    calls: dict[str, Callable[[], object]] = {}
    rows: list[tuple[str, str]] = []
    for name, kind in KINDS.items():
        for way in WAYS:
            if not all(w in f"{name} {way}" for w in words):
                continue
            rows.append((name, way))
            for title, call in calls_of(name, kind, way):
                calls[f"{name}, {way}, {title}"] = call
    seconds = least_seconds_of_many(calls, time.thread_time)
    table = Table(title="one call, ns; and how many times as long torch's takes")
    pairs = [("array", "torch"), ("Tensor", "torch"), ("recorded", "torch, recorded")]
    for heading in ("schema", "way", *CONTESTANTS, *(each for each, _ in pairs)):
        table.add_column(heading, justify="left" if heading in ("schema", "way") else "right")
    least = dict.fromkeys((each for each, _ in pairs), float("inf"))
    for name, way in rows:
        took = {title: seconds.get(f"{name}, {way}, {title}") for title in CONTESTANTS}
        ratios = []
        for ours, theirs in pairs:
            one, other = took.get(ours), took.get(theirs)
            ratios.append("" if one is None or other is None else f"{other / one:.1f}")
            if one is not None and other is not None:
                least[ours] = min(least[ours], other / one)
        shown = ["" if each is None else f"{each * 1e9:.0f}" for each in took.values()]
        table.add_row(escape(KINDS[name].title), way, *shown, *ratios)
    Console(width=150).print(table)
    for ours, ratio in least.items():
        print(f"{ours}: torch takes at least {ratio:.1f} times as long")


if __name__ == "__main__":
    main(sys.argv[1:])
