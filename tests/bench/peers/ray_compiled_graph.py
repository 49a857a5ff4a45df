"""Executions of a Ray compiled graph of one actor, on one machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from conversation import converse
from ray.dag import InputNode
from ray_cluster import Adder, cluster

BUFFER_BYTES = 32_000_000
"""Room for two arrays of 10 MB; with few executions in flight, always in the same memory."""


def compiled(in_flight: int, buffer_bytes: int) -> Any:
    """A graph of an actor of its own."""
    adder = Adder.remote()
    with InputNode() as arguments:
        graph = adder.add.bind(arguments[0], arguments[1])
    return graph.experimental_compile(
        _max_inflight_executions=in_flight, _buffer_size_bytes=buffer_bytes
    )


def main() -> None:
    """The cluster, and the conversation."""
    with cluster():
        one, several = compiled(2, BUFFER_BYTES), compiled(64, 4096)

        def add(elements: int) -> Callable[[], object]:
            x = np.ones(elements, np.float32)
            return lambda: ray.get(one.execute(x, x))

        def many(count: int, in_flight: int) -> None:
            x = np.ones(4, np.float32)
            under_way: deque[object] = deque()
            for _ in range(count):
                if len(under_way) == in_flight:
                    ray.get(under_way.popleft())
                under_way.append(several.execute(x, x))
            while under_way:
                ray.get(under_way.popleft())

        converse(add, many)
        one.teardown()
        several.teardown()


if __name__ == "__main__":
    main()
