"""Costs of a change to calls that do not use it: two checkouts, compared.

    git worktree add ../before COMMIT
    python -m tests.bench.two_trees ../before .

Processes of both take turns. The thread's own clock is read, and the least of many short rounds in
all processes is quoted: the machine's speed changes by half from one second to the next.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PROCESSES = 8
ROUNDS, CALLS = 30, 3000
NAMES = (
    "an operator of one's own, of arrays",
    "the same, of Tensors",
    "array::add.Tensor, held, of arrays",
    "array_api.add, of Tensors",
)


def _least_seconds(call: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        least = min(least, (time.thread_time() - start) / CALLS)
    return least


def measure() -> None:
    """Print the times of one process, of the tree that PYTHONPATH names."""
    import numpy as np

    from opdispatch import Library, Tensor, array_api, ops

    array = np.ones(4)
    tensor = Tensor(array)
    library = Library("two_trees", "DEF")
    library.define("first(Tensor x, Tensor y) -> Tensor")
    library.impl("first", lambda x, y: x, "CPU")
    first, add = ops.two_trees.first.default, ops.array.add.Tensor
    calls: tuple[Callable[[], object], ...] = (
        lambda: first(array, array),
        lambda: first(tensor, tensor),
        lambda: add(array, array),
        lambda: array_api.add(tensor, tensor),
    )
    print(*map(_least_seconds, calls))


def _times_of(tree: Path) -> list[float]:
    rooms = (str(tree.resolve() / room) for room in ("dispatcher", "proto", "server", "client"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(rooms)}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(each) for each in done.stdout.split()]


def main(before: Path, after: Path) -> None:
    """Print the table."""
    times: dict[Path, list[list[float]]] = {before: [], after: []}
    for _ in range(PROCESSES):
        for tree in (before, after):
            times[tree].append(_times_of(tree))
    for place, name in enumerate(NAMES):
        one, other = (min(each[place] for each in times[tree]) for tree in (before, after))
        print(f"{name:38} {one * 1e6:6.3f} us {other * 1e6:6.3f} us  {other / one - 1:+.1%}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure()
    else:
        main(*map(Path, sys.argv[1:]))
