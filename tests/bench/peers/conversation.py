"""The part that all peers have in common: see the package's docstring. Standard library alone."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


def converse(
    add: Callable[[int], Callable[[], object]],
    many: Callable[[int, int], None] | None = None,
) -> None:
    """Answer until no more questions come.

    ``add`` makes an addition for a number of elements; ``many`` makes so many, so many at a time.
    """
    ready: dict[int, Callable[[], object]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        what, first, second = json.loads(line)
        if what == "calls":
            call = ready.get(first)
            if call is None:
                call = ready[first] = add(first)
            start = time.perf_counter()
            for _ in range(second):
                call()
        elif many is None:
            print("null", flush=True)
            continue
        else:
            start = time.perf_counter()
            many(first, second)
        print(json.dumps(time.perf_counter() - start), flush=True)
