"""Executions of a Ray compiled graph of one actor, on one machine.

Its processes wait by spinning, and keep the cores busy also while it is not executed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import ray
from conversation import converse
from ray.dag import InputNode
from ray_cluster import Adder, cluster

IN_FLIGHT = 2
"""With ten, small ones are no faster, and those of 10 MB take 20 times as long."""
BUFFER_BYTES = 32_000_000
"""Room for two arrays of 10 MB."""


def main() -> None:
    """The cluster, and the conversation."""
    with cluster():
        adder = Adder.remote()
        with InputNode() as arguments:
            graph = adder.add.bind(arguments[0], arguments[1])
        compiled = graph.experimental_compile(
            _max_inflight_executions=IN_FLIGHT, _buffer_size_bytes=BUFFER_BYTES
        )

        def add(elements: int) -> Callable[[], object]:
            x = np.ones(elements, np.float32)
            return lambda: ray.get(compiled.execute(x, x))

        def many(count: int, in_flight: int) -> None:
            x = np.ones(4, np.float32)
            under_way: deque[object] = deque()
            for _ in range(count):
                if len(under_way) == min(in_flight, IN_FLIGHT):
                    ray.get(under_way.popleft())
                under_way.append(compiled.execute(x, x))
            while under_way:
                ray.get(under_way.popleft())

        converse(add, many)
        compiled.teardown()


if __name__ == "__main__":
    main()
