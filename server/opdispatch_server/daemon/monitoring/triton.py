"""The metrics of calls under the names of Triton Inference Server, for its dashboards.

An operator counts as a model, and the version of its library as that of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from opdispatch_server.daemon.monitoring.call_exposition import Family, Sample
from opdispatch_server.metrics.call_table import DIED, FAILED, OK, QUEUE_NS, RUN_NS, Numbers

TRITON_LABELS: Final = {"operator": "model", "version": "version"}


def _sum(*columns: int, unit: int = 1) -> Callable[[Numbers], Numbers]:
    def sum_of(numbers: Numbers) -> Numbers:
        sums: Numbers = numbers[:, columns].sum(axis=1, keepdims=True)
        return sums // np.uint64(unit)

    return sum_of


_sum_us = partial(_sum, unit=1000)

# The names have no suffix there; durations are in microseconds.
TRITON_FAMILIES: Final = [
    Family(f"nv_inference_{name}", "unknown", about, [Sample(f"nv_inference_{name}")], columns)
    for name, about, columns in (
        ("request_success", "Successful calls", _sum(OK)),
        ("request_failure", "Failed calls", _sum(FAILED, DIED)),
        ("count", "Calls that were run", _sum(OK)),
        ("exec_count", "Runs of kernels", _sum(OK)),
        (
            "request_duration_us",
            "Time of calls, in microseconds",
            _sum(QUEUE_NS, RUN_NS, unit=1000),
        ),
        ("queue_duration_us", "Time in queues, in microseconds", _sum(QUEUE_NS, unit=1000)),
        ("compute_infer_duration_us", "Time in kernels, in microseconds", _sum(RUN_NS, unit=1000)),
    )
]
