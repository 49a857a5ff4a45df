"""A Ray cluster of this machine alone, and the actor that adds in it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import ray


@ray.remote
class Adder:
    """Adds what it is given."""

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The sum."""
        return x + y


@contextmanager
def cluster() -> Iterator[None]:
    """Start one, and end it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()
