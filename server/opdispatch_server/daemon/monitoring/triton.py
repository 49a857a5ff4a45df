"""The metrics of calls under the names of Triton Inference Server's, for dashboards that know them.

An operator is a model, and the version of its library, the model's.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from opdispatch_server.daemon.monitoring.call_text import Family, Sample, labels_text
from opdispatch_server.metrics.call_counts import Series
from opdispatch_server.metrics.call_table import DIED, FAILED, OK, QUEUE_NS, RUN_NS, Numbers

# The names have no suffix there; durations are in microseconds.
TRITON_FAMILIES: Final = [
    Family(f"nv_inference_{name}", "unknown", about, [Sample(f"nv_inference_{name}", column)])
    for name, about, column in (
        ("request_success", "Successful calls", 0),
        ("request_failure", "Failed calls", 1),
        ("count", "Calls that were run", 0),
        ("exec_count", "Runs of kernels", 0),
        ("request_duration_us", "Time of calls, in microseconds", 2),
        ("queue_duration_us", "Time in queues, in microseconds", 3),
        ("compute_infer_duration_us", "Time in kernels, in microseconds", 4),
    )
]


def triton_columns(numbers: Numbers) -> Numbers:
    """Return the numbers of the samples of TRITON_FAMILIES."""
    times = numbers[:, [QUEUE_NS, RUN_NS]]
    failed = numbers[:, FAILED] + numbers[:, DIED]
    whole = times.sum(axis=1)
    times = np.column_stack([whole, times]) // np.uint64(1000)
    return np.column_stack([numbers[:, OK], failed, times])


def triton_labels(series: Series) -> str:
    """Return the labels of a series as they are written."""
    return labels_text(iter([("model", series.operator), ("version", series.version)]))
