"""Calls of a Ray actor, on one machine."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable

import numpy as np
import ray
from conversation import converse


@ray.remote
class Adder:
    """Adds what it is given."""

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The sum."""
        return x + y


def main() -> None:
    """A cluster of this machine alone, and the conversation."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    adder = Adder.remote()

    def add(elements: int) -> Callable[[], object]:
        x = np.ones(elements, np.float32)
        return lambda: ray.get(adder.add.remote(x, x))

    def many(count: int, in_flight: int) -> None:
        x = np.ones(4, np.float32)
        under_way: deque[object] = deque()
        for _ in range(count):
            if len(under_way) == in_flight:
                ray.get(under_way.popleft())
            under_way.append(adder.add.remote(x, x))
        ray.get(list(under_way))

    try:
        converse(add, many)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
