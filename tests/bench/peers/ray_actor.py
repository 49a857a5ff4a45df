"""Calls of a Ray actor, on one machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import ray
from conversation import converse
from ray_cluster import Adder, cluster


def main() -> None:
    """The cluster, and the conversation."""
    with cluster():
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

        converse(add, many)


if __name__ == "__main__":
    main()
