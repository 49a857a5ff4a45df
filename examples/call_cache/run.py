"""Measure the savings of a cache of calls: ``python run.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from call_cache import call_cache

from opdispatch import Tensor
from opdispatch import array_api as xp

RNG = np.random.default_rng(0)
X = Tensor(RNG.normal(size=(300, 300)))
CALLS: dict[str, Callable[[], Any]] = {
    "linalg.svd(300 x 300)": lambda: xp.linalg.svd(X),
    "linalg.eigvalsh(300 x 300)": lambda: xp.linalg.eigvalsh(X),
    "matmul(300 x 300)": lambda: xp.matmul(X, X),
    "add(300 x 300)": lambda: xp.add(X, X),
}


def milliseconds(call: Callable[[], Any], times: int) -> float:
    """Return the fastest of so many calls."""
    fastest = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        call()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest * 1000


def main() -> None:
    """Print a table."""
    print(f"{'':26}  calculated  remembered  by version")
    for name, call in CALLS.items():
        calculated = milliseconds(call, 5)
        with call_cache() as by_elements:
            remembered = milliseconds(call, 10)
        with call_cache(by="version"):
            by_version = milliseconds(call, 10)
        assert by_elements.hits == 9
        columns = "".join(f"{ms:9.2f} ms" for ms in (calculated, remembered, by_version))
        print(f"{name:26}{columns}")


if __name__ == "__main__":
    main()
